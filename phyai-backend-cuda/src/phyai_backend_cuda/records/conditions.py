"""Conditions that records of several families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyai.kernel import Param

#: Triton's first release that these kernels were written for.
TRITON: Mapping[str, Any] = {"device.type": "cuda", "device.vendor": "nvidia", "lib.triton": ">=3.4"}

#: wgmma as the CUDA C++ sources use it is sm_90a's alone.
HOPPER: Mapping[str, Any] = {
    "device.type": "cuda", "device.vendor": "nvidia", "device.arch": "sm90", "lib.cupy": ">=13",
}  # fmt: skip

#: Of kernels that run between others: see ``triton_rows.common.overlapping``.
OVERLAP = Param("overlap", "set up while the kernel in front still runs; sm90 or later", (False, True), False)

#: What a gated or plain feed-forward block can put between its products.
ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]


def same_dtype(required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """All of these tensors have one of the 16-bit types, optional ones where they are given."""
    return {
        "any_of": [
            {**{f"dtype.{n}": dtype for n in required}, **{f"dtype.{n}": [None, dtype] for n in optional}}
            for dtype in ("bf16", "fp16")
        ]
    }
