"""Products and feed-forward blocks of the expert with 16-, 8- and 4-bit weights: sections of ``gpu_rows.py``.

The rows as call sites prepare them, with the cuts that they choose; ``gpu_skinny.py`` compares cuts.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from gpu_table import Rows, normal, prepared, weight
from phyai.quant.realize import quantize_weight
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

F = torch.nn.functional
SIZES: Mapping[str, tuple[int, int]] = {
    "qkv": (2560, 1024), "o": (1024, 2048), "gate_up": (8192, 1024), "down": (1024, 4096),
}  # fmt: skip
#: What weights become, by the end of the rows' ids.
FORMS: Mapping[str, QuantScheme | None] = {
    "16bit": None,
    "fp8": QuantScheme(TensorQuant("fp8_e4m3", "channel")),
    "int4": QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16")),
}
FACTS: Mapping[str, Any] = {"dtype.x": "bf16", "dtype.y": "bf16", "device.sm_count": 132, "device.arch": "sm90"}
Fresh = Callable[[], "torch.Tensor | QuantizedWeight"]


def weights_of(n: int, k: int, scheme: QuantScheme | None) -> Fresh:
    """A function that gives fresh weights: other memory, and for a quantized one the same values."""
    if scheme is None:
        return lambda: weight(n, k)
    from phyai_backend_cuda.skinny.layout import pack

    held = pack(quantize_weight(weight(n, k), scheme))

    def fresh() -> QuantizedWeight:
        packed = {name: tensor.clone() for name, tensor in held.packed.items()}
        return attrs.evolve(held, scale=held.scale.clone(), packed=packed)

    return fresh


def nbytes_of(weight: torch.Tensor | QuantizedWeight) -> int:
    return weight.nbytes if isinstance(weight, torch.Tensor) else weight.nbytes()


def facts_of(weight: torch.Tensor | QuantizedWeight, prefix: str = "") -> dict[str, Any]:
    facts = {} if isinstance(weight, torch.Tensor) else weight.facts()
    return {prefix + name: value for name, value in facts.items()}


def products(table: Rows) -> None:
    for m in (50, 10, 1):
        for name, (n, k) in SIZES.items():
            what, flops = f"expert {name} M={m} N={n} K={k}", 2 * m * n * k
            for form, scheme in FORMS.items():
                fresh = weights_of(n, k, scheme)
                one = fresh()
                table.row(what, f"cuda.gemm.skinny_{form}", nbytes_of(one) + 2 * m * (n + k),
                          {**FACTS, "shape.N": n, "shape.K": k, **facts_of(one)},
                          lambda: ({"weight": fresh()}, (normal(m, k),)), flops=flops)  # fmt: skip


def feed_forward(table: Rows) -> None:
    (columns, k), (n, width) = SIZES["gate_up"], SIZES["down"]
    for m in (50, 10, 1):
        what, flops = f"gated_mlp M={m} K={k} I={width} N={n}", 2 * m * (columns * k + n * width)
        for form, scheme in FORMS.items():
            gate_up, down = weights_of(columns, k, scheme), weights_of(n, width, scheme)
            quantized = {**facts_of(gate_up(), "parts.gate_up."), **facts_of(down(), "parts.down.")}
            facts = {**FACTS, "attrs.activation": "gelu_tanh", **quantized}
            nbytes = nbytes_of(gate_up()) + nbytes_of(down()) + 2 * m * (n + k)
            table.row(what, f"cuda.gated_mlp.skinny_{form}", nbytes, facts,
                      lambda: ({"gate_up": gate_up(), "down": down()}, (normal(m, k),)), flops=flops)  # fmt: skip

        def chain() -> Callable[[], Any]:
            facts = {**FACTS, "shape.I": width, "attrs.activation": "gelu_tanh"}
            activation = prepared("flashinfer.gated_activation", facts, {}).run
            x, first, second = normal(m, k), weight(columns, k), weight(n, width)
            return lambda: F.linear(activation(F.linear(x, first)), second)

        nbytes = 2 * (columns * k + n * width + m * (n + k))
        table.plain(what, "cuBLAS, flashinfer.gated_activation, cuBLAS", nbytes, chain, flops)
