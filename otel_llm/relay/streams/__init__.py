"""The life of an owned request: its states, its session, its moves and pauses."""
