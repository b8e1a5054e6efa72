"""The records of the quantized rows. One of the three holds for every scheme in the plain layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import match

_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in range(2, 9)]
_QUANTIZED: Mapping[str, Any] = {
    "device.type": ["cpu", "cuda"],
    "quant.scheme": "*",
    "quant.layout": "plain",
}


def _row(variant: str, doc: str, when: Mapping[str, Any], accumulation: str) -> Kernel:
    return Kernel(
        id=f"reference.gemm.{variant}",
        op="gemm",
        when=match({**_QUANTIZED, **when}),
        prepare=f"phyai_backend_reference.quantized.gemm:prepare_{variant}",
        capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, accumulation=accumulation),
        band=Band.REFERENCE,
        doc=doc,
    )


_BOTH_INTEGERS = {"quant.weight": _INTEGERS, "quant.activation": _INTEGERS}

KERNELS: tuple[Kernel, ...] = (
    _row(
        "weight_only",
        "quantized weight, inputs as they are: dequantize, then multiply in fp32",
        {"quant.activation": None},
        "fp32",
    ),
    _row(
        "integer",
        "integer weight and input: exact integer sums within each scale, then scaled",
        _BOTH_INTEGERS,
        "int32",
    ),
    _row(
        "quantized_input",
        "quantized weight and input, not both integers: both dequantized, multiplied in fp32",
        {"quant.activation": "*", "none_of": [_BOTH_INTEGERS]},
        "fp32",
    ),
)
