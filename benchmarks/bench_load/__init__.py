"""The parts of `benchmarks/bench.py`: a paced server that keeps the truth, and a client as others are built."""
