"""Random settings of the operators of `com.microsoft`, against ONNX Runtime."""
