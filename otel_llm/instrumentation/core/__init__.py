"""One recorded request: its span, its segments' buffer, its metrics, and the liveness of its reader."""
