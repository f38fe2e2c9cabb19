"""The fluid token rate (Etalon, section 5.1)."""
