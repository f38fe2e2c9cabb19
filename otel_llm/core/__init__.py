"""The kernels: plain loops over arrays, compiled by numba where it is installed; and limits and shares of tables."""
