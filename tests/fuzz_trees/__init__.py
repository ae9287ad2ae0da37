"""Random tile trees over kernels of several computations: accepted ones are verified and compute the same."""
