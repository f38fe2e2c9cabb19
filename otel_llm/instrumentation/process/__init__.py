"""The recorder of this process: its settings, its flusher, its stops, and its patches of libraries."""
