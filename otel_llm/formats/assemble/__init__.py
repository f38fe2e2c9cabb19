"""Put records together to requests and streams: complete ones at once, the others at the end, in bounded memory."""
