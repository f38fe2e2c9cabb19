"""The compilation of kernels: its mode, numba, the cache, and the time of it."""
