"""Files as bytes, lines and JSON values; the record of the journal; counts of skipped parts."""
