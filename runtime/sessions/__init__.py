"""What runs a network: ONNX Runtime, and the numpy toy that the tests use."""
