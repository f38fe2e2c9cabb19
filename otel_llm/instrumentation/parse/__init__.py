"""Parsers of the bodies that streamed replies have on the wire, and readers of their chunks."""
