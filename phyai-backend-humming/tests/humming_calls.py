"""Calls of ``gemm`` with weights in Humming's layout, as facts."""

from __future__ import annotations

from typing import Any

from phyai.calls import call_facts
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.ops import CORE_OPS
from phyai.quant.scheme import QuantScheme

GEMM = next(op for op in CORE_OPS if op.name == "gemm")
LIBRARIES = {"humming": "0.1.20", "triton": "3.6.0", "torch": "2.11.0"}


def facts(
    scheme: QuantScheme, n: int, k: int, *, device: str = "sm90", dtype: str = "bf16", m: int | None = 50,
    bias: bool = False, layout: str = "humming", **more: Any,
) -> Facts:  # fmt: skip
    stored = scheme.weight.dtype if scheme.weight.bits == 8 else "uint8"
    environment = Environment.simulated(device, libraries=LIBRARIES)
    dims = {"N": n, "K": k} if m is None else {"M": m, "N": n, "K": k}
    return call_facts(
        GEMM, dims=dims, dtypes={"x": dtype, "y": dtype, "weight": stored, **({"bias": dtype} if bias else {})},
        present=("bias",) if bias else (),
        extra={**environment.facts(), **scheme.facts(), "quant.layout": layout, "mode.capture": False, **more},
    )  # fmt: skip
