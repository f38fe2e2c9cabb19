"""The journal: every accepted export request on disk before it is acknowledged."""
