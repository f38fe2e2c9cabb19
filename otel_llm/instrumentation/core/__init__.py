"""One recorded request: its span, its segments' buffer, its metrics, and whether its reader is still there."""
