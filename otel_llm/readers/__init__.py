"""Any received or recorded form of a stream to plain values."""
