"""Operators of ONNX Runtime's domain `com.microsoft`, by their meaning: one idea per file.

What they compute follows the domain's documentation and ONNX Runtime's CPU kernels, against which they are tested
(`tests/fuzz_contrib`). https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

CONTRIB = "com.microsoft"
"""The domain."""
