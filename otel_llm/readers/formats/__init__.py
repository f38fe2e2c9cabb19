"""Recordings of databases, query APIs and tables; the table of all forms."""
