"""The parts of `benchmarks/bench_peers.py`: the clients as programs, their figures, and the two comparisons."""
