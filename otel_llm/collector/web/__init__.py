"""The web port: the live page, metrics, and snapshots as JSON."""
