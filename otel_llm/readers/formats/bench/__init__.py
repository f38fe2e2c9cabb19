"""The result files of benchmark tools, a module each."""
