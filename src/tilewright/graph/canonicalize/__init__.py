"""Canonical forms: computations that different exporters spell differently become the same stages."""
