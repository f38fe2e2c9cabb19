"""Judge many recorded requests at once, as arrays."""
