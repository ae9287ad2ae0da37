"""Real models as ONNX files, with inputs, a float64 reference, accuracy checks and speed measurements.

Run as `python -m benchmarks.zoo build|verify|bench|list|ops`; see `benchmarks/README.md`.
"""
