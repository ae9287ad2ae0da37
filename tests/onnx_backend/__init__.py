"""ONNX's own backend tests on Tilewright: `python -m tests.onnx_backend` runs all of them and prints a table."""
