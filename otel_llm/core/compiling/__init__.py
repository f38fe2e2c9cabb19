"""How kernels are compiled, apart from the kernels: whether, with what, where they are kept, and when."""
