"""The life of an owned request: its session, its backends, its moves and pauses."""
