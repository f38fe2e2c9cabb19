"""Plans of a load, without I/O: arrivals, lengths, prompts."""
