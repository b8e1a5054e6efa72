"""The records of ``reference.*``: one kernel for every op that is not composite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import match

#: Kernels whose matrix products have PyTorch load its BLAS library, and give it scratch, on the first call.
_MATMUL = (
    "gemm", "attention", "attention_paged", "conv1d", "conv2d", "conv3d", "expert_steps", "transformer_encoder",
)  # fmt: skip

#: Ops that only copy, add and multiply, so that no row depends on another. (Exponentials and error functions differ in
#: the last bit between a CPU's vectors and what is left over at their end.)
_ELEMENTWISE = ("kv_write", "embedding", "rope", "modulation", "gated_residual")
_FUNCTIONS = ("activation", "gated_activation", "causal_conv")

_NORMS = ("rms_norm", "rms_norm_add", "ada_rms_norm", "layer_norm", "group_norm", "channel_l2_norm")

#: What a call must satisfy beyond its op's signature.
_WHEN: Mapping[str, Mapping[str, Any]] = {
    "gemm": {"quant.scheme": None},
    "attention": {
        "any_of": [
            {"attrs.layout": "padded", "dtype.cu_seqlens_q": None, "dtype.cu_seqlens_k": None},
            {
                "attrs.layout": "ragged",
                "dtype.mask": None,
                "dtype.cu_seqlens_q": "int32",
                "dtype.cu_seqlens_k": "int32",
            },
        ]
    },
    "quantize_activation": {
        "any_of": [
            {"attrs.granularity": "tensor"},
            {"attrs.granularity": "token", "dtype.scale": None},
            {"attrs.granularity": "group", "dtype.scale": None, "attrs.group_size": ">=1"},
        ]
    },
}


def _row(op: str) -> Kernel:
    module = "conv" if op in ("conv1d", "conv2d", "conv3d") else op
    return Kernel(
        id=f"reference.{op}",
        op=op,
        when=match({"device.type": ["cpu", "cuda"], **_WHEN.get(op, {})}),
        prepare=f"phyai_backend_reference.reference.{module}:prepare",
        capture=Capture.AFTER_WARMUP if op in _MATMUL else Capture.SAFE,
        numerics=Numerics(reproducible=True, batch_invariant=op in _ELEMENTWISE),
        band=Band.REFERENCE,
        doc=f"{op} in plain PyTorch, computed in fp32 (fp64 for fp64)",
    )


KERNELS: tuple[Kernel, ...] = tuple(
    _row(op) for op in (*_MATMUL, *_NORMS, *_ELEMENTWISE, *_FUNCTIONS, "quantize_activation")
)
