"""The facts of a request at its commit, and the headers that carry some of them."""
