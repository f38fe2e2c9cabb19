"""The arithmetic: SLO classes, the verdict on one request in three forms, windows. No I/O, no imports of ours."""
