"""Calibration: alpha and first-token targets fitted to recorded readers."""
