"""The inputs of an audit: files as batches of streams, and tables that an audit saved."""
