"""What runs a graph, one file each, found by name: ONNX Runtime's providers, built in or as plug-ins, and OpenVINO."""
