"""The recording of owned requests: our own recorder's segments, and the stream events for rules."""
