"""The audit's kernel: from batches of recorded streams to batches of judged requests and window totals."""
