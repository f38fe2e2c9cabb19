"""The kernels: plain loops over arrays, compiled by numba if it is installed; and limits and shares of tables."""
