"""The parts of `benchmarks/bench.py`: a server that keeps the truth, the comparison, a client as others are built."""
