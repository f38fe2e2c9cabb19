"""The recorder of this process: its settings, its flusher, its stops, and what it replaces in libraries."""
