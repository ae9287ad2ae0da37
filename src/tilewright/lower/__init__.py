"""Compiler passes over kernels and loop functions."""
