"""The requests to backends: who may serve, who is asked first and who beside or behind it, and the answers."""
