"""Operators that compilers take, as the allow-lists of `Rules`."""

from __future__ import annotations

CONTRIB = "com.microsoft"

Operators = tuple[tuple[str, frozenset[str]], ...]


def names(text: str) -> frozenset[str]:
    """Names with spaces between."""
    return frozenset(text.split())


PORTABLE = names(
    "Add Cast Concat Div Erf Exp Flatten Gather Gemm Log LogSoftmax MatMul Mul Neg Pow ReduceMean ReduceSum Reshape "
    "Sigmoid Softmax Split Sqrt Squeeze Sub TopK Transpose Unsqueeze"
)
"""Of ONNX's own domain, what the portable lowering and the drafters' graphs are written in."""

QUANTISED = names("DequantizeLinear QuantizeLinear")

AMD_BF16 = names(
    "Abs Add And ArgMax ArgMin AveragePool BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast "
    "Ceil Concat Constant ConstantOfShape Conv ConvTranspose CumSum DepthToSpace Div Einsum Equal Erf Exp Expand "
    "Flatten Floor Gather GatherElements Gemm GlobalAveragePool Greater GridSample Identity InstanceNormalization LSTM "
    "Less Log MatMul Max MaxPool Min Mod Mul Neg Not Or Pad Pow Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum "
    "Reshape Resize Round ScatterND Shape Sigmoid Sign Sin Size Slice Split Sqrt Squeeze Sub Tanh Tile Transpose "
    "Unsqueeze Upsample Where Xor"
)
"""Column BF16 of "Supported Operators" in AMD's documentation of Ryzen AI 1.8.0 (ops_support.rst, 23 July 2026)."""


def operators(onnx: frozenset[str], contrib: frozenset[str] = frozenset()) -> Operators:
    """An allow-list of ONNX's own domain and ONNX Runtime's."""
    return (("", onnx), (CONTRIB, contrib)) if contrib else (("", onnx),)
