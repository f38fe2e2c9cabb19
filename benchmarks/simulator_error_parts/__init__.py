"""Parts of `benchmarks/simulator_error.py`."""
