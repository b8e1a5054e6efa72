"""``cuda.transformer_encoder.folded``: five launches a layer; each may begin before the one in front has ended.

The first product of each half reads the residual stream as it is and has the norm in its weight and its epilogue; the
last adds to the stream and says what the next norm needs to know of it (:mod:`.products`). Attention is
``cuda.attention.short``, and the norm behind the last layer ``cuda.layer_norm``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from phyai.facts import Facts, FactValue, number, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.attention import short
from phyai_backend_cuda.encoder.products import (
    Adding,
    Folded,
    Normed,
    folded,
    statistics_for,
    statistics_kernel,
    statistics_of,
)
from phyai_backend_cuda.runtime.early import settling
from phyai_backend_cuda.runtime.memory import described
from phyai_backend_cuda.triton_rows.norms import prepare_layer_norm


@attrs.frozen
class Layer:
    """The products of a layer."""

    qkv: Normed
    o: Adding
    fc1: Normed
    fc2: Adding

    @property
    def products(self) -> tuple[Normed | Adding, ...]:
        return self.qkv, self.o, self.fc1, self.fc2


def of_layer(weights: Mapping[str, Any], i: int) -> tuple[Folded, Folded]:
    """Layer i's qkv and fc1, each with the norm in front of it."""
    made = [
        folded(*(weights[of][i] for of in (name, f"{name}_bias", f"{norm}_weight", f"{norm}_bias")))
        for name, norm in (("qkv", "norm1"), ("fc1", "norm2"))
    ]
    return made[0], made[1]


def layers_of(facts: Facts, weights: Mapping[str, Any]) -> Iterator[Layer]:
    eps, activation = number(facts, "attrs.eps", 1e-5), str(facts["attrs.activation"])
    for i in range(whole(facts, "shape.layers")):
        qkv, fc1 = of_layer(weights, i)
        yield Layer(
            Normed(qkv, eps, facts), Adding(weights["o"][i], weights["o_bias"][i], facts),
            Normed(fc1, eps, facts, activation=activation), Adding(weights["fc2"][i], weights["fc2_bias"][i], facts),
        )  # fmt: skip


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    heads, width, inner = whole(facts, "attrs.heads"), whole(facts, "shape.D"), whole(facts, "shape.I")
    attention: dict[str, FactValue] = {
        "shape.heads": heads, "shape.kv_heads": heads, "shape.head_dim": width // heads, "dtype.q": "bf16",
        "device.sm_count": whole(facts, "device.sm_count", 132),
    }  # fmt: skip
    attend = short.prepare(Facts(attention), {}, {}, resources).run
    last = prepare_layer_norm(facts, norm_of(weights), {"overlap": True}, resources)
    statistics_kernel(torch.bfloat16)  # compiled here, where a failure leaves the call to another kernel
    layers = list(layers_of(facts, weights))
    for layer in layers:
        for product in layer.products:
            product.load(resources.rows)

    def encoded(x: torch.Tensor) -> torch.Tensor:
        """Behind all layers, in front of the last norm; of ``x [B, S, D]``."""
        rows = described(x.reshape(-1, width))
        m, sequences = len(rows), (*x.shape[:-1], heads, width // heads)
        qkv, mixed, hidden, stream = (rows.new_empty(m, n) for n in (3 * width, width, inner, width))
        q, k, v = qkv.view(*x.shape[:-1], 3, heads, -1).unbind(-3)
        first, second = (statistics_for(m, width, x.device) for _ in range(2))
        statistics_of(rows, first)
        for layer in layers:
            layer.qkv.normed(rows, first, qkv)
            attend(q, k, v, out=mixed.view(sequences))
            layer.o.added(mixed, rows, stream, second)
            layer.fc1.normed(stream, second, hidden)
            layer.fc2.added(hidden, stream, stream, first)
            rows = stream
        return rows.view(x.shape)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        y: torch.Tensor = last.run(encoded(x.reshape(-1, *x.shape[-2:])).view(x.shape) if x.numel() else x, out=out)
        return y

    def refresh(new: Mapping[str, Any]) -> None:
        for i, layer in enumerate(layers):
            for product, made in zip((layer.qkv, layer.fc1), of_layer(new, i), strict=True):
                product.take(made)
            layer.o.refresh(new["o"][i], new["o_bias"][i])
            layer.fc2.refresh(new["fc2"][i], new["fc2_bias"][i])
        if last.refresh is not None:
            last.refresh(norm_of(new))

    return settling(run, refresh)


def norm_of(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of the norm behind all layers."""
    return {name: weights[f"norm_{name}"] for name in ("weight", "bias")}
