"""Where requests go and in which order: decisions without I/O."""
