"""Layouts of tensors as data, and rewriting of computations for them."""
