"""Parsers of the bodies of streamed replies, and readers of their chunks."""
