"""From records to requests and streams: complete ones at once, the others at the end, within bounds of memory."""
