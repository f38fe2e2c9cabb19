"""The sinks of a service: counters, files, the console, the tables of streams in flight."""
