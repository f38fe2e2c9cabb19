"""The settings of the collector, and the file they are read from."""
