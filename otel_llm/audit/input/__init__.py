"""What an audit reads: files to batches of streams, and tables that an audit saved."""
