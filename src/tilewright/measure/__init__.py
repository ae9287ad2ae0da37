"""Measurements of generated code; with the benchmarks, the only layer that reads a clock."""
