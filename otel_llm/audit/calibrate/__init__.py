"""Calibration: alpha and first-token targets from what recorded readers did."""
