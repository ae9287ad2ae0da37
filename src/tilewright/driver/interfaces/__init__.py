"""Interfaces of other runtimes on compiled models: ONNX Runtime's session and tensors, ONNX's backend."""
