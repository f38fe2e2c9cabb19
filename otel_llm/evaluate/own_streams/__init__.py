"""The streams that a process owns, followed at first hand: nothing is late, nothing is missing."""
