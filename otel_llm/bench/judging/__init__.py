"""What a finished run is worth, without I/O: validity, the warm-up, the fluid token rate."""
