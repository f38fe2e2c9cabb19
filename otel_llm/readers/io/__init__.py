"""Files as bytes, lines and JSON values; the journal's record."""
