"""The hooks, one module for each client library."""
