"""The simulated engine: requests on a fleet of instances, in integer nanoseconds, without I/O and without a clock."""
