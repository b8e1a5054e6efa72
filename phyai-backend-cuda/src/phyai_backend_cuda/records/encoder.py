"""The record of encoders whose norms are part of the products around them.

Launched so that they may begin before the kernel in front has ended, as :mod:`.skinny`'s are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import match

from phyai_backend_cuda.records.attention import FITS
from phyai_backend_cuda.records.conditions import ACTIVATIONS, HOPPER, TRITON

_TENSORS = (
    "x", "y", "qkv", "qkv_bias", "o", "o_bias", "fc1", "fc1_bias", "fc2", "fc2_bias",
    *(f"{norm}_{name}" for norm in ("norm1", "norm2", "norm") for name in ("weight", "bias")),
)  # fmt: skip

#: bf16: a norm's factors can take a weight in fp16 out of its range.
_WHEN: Mapping[str, Any] = {
    **TRITON, **HOPPER, **{f"dtype.{name}": "bf16" for name in _TENSORS}, "shape.D": "%64,<=1536", "shape.I": "%8",
    "attrs.heads": "<=65535", "attrs.activation": ACTIVATIONS,
    "any_of": [{{"shape.Sk": "shape.S"}.get(name, name): value for name, value in fits.items()} for fits in FITS],
}  # fmt: skip

#: SigLIP's 27 layers of three images take 1.47 ms on an H200, one call after the other 1.62; of two 1.30 for 1.50, of
#: one 1.15 for 1.20 (benchmarks/notes/encoder.md).
_MEASURED = {"shape.B": [1, 2, 3], "shape.S": 256, "shape.D": 1152, "shape.I": 4304, "attrs.heads": 16}

KERNELS: tuple[Kernel, ...] = (
    Kernel(
        id="cuda.transformer_encoder.folded", op="transformer_encoder", when=match(_WHEN),
        prepare="phyai_backend_cuda.encoder.layers:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=True), band=Band.REFERENCE,
        bands={Band.OPTIMIZED: match(_MEASURED)},
        doc="norms in the weights and epilogues of products; keeps weights of its own of those behind a norm",
    ),
)  # fmt: skip
