"""Vortex: programs for kernels of dynamic sizes, chosen from a library that the machine's limits give."""
