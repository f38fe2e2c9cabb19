"""Prometheus rules made of SLO classes."""
