"""From records to streams and requests: what is whole, and what is not within bounds."""
