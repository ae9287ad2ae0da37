"""Winograd convolution: the same sums from fewer multiplications, by minimal filtering."""
