"""The life of an owned request: its session, the backends that serve it, and its moves between them."""
