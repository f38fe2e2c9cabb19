"""Workloads: arrivals, lengths and promises of requests, drawn from a seed."""
