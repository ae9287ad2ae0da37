"""The pipelines: `compile` as one readable list of steps, and the session that looks like ONNX Runtime's."""
