"""Loads and servers to measure with: here the scripted streaming server and client of the demo."""
