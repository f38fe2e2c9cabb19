"""The attempts at one request: which backends may serve it, which get it, and their answers."""
