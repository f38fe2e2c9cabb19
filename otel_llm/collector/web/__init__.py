"""The web port: snapshots as JSON, the metrics text, the live page."""
