"""The kernels: plain loops over arrays, compiled by numba where it is installed. Nothing else is compiled."""
