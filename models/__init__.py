"""What a network is: checkpoints in, ONNX graphs out. The runtime imports only `contract`."""
