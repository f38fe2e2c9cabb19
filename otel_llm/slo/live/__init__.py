"""The judgement of a stream in flight."""
