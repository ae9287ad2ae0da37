"""Routines of operators, by what they do to tensors."""
