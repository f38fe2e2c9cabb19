"""Rules on the relay's own streams: decisions, the actions for them, and their records."""
