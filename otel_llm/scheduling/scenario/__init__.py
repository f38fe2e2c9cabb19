"""Scenarios: the file that says what to simulate, and the runs of its sweep."""
