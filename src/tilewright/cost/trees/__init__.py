"""Predicted times of tile trees: one walk over a tree of loops around the statements of one or several computations."""
