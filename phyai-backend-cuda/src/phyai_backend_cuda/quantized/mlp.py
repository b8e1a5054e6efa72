"""``cuda.mlp.fp8_a8``, and ``cuda.gated_mlp`` of ``fp8_a8`` and ``int8_a8``, also behind a norm: four launches each.

::

    x               → codes, one scale per row (or one); of a norm, as it is computed
    first product   → 16 bits
    activation      → in fp32, straight to codes and scales
    second product
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.quantized.norm import Norm
from phyai_backend_cuda.quantized.product import Product, Quantized, placed, product_of
from phyai_backend_cuda.triton_rows.common import overlapping


class Block:
    """A feed-forward block of quantized inputs. ``facts`` are those of ``mlp`` or ``gated_mlp``, ``head`` what stands
    before those of its parts."""

    def __init__(
        self, facts: Facts, weights: Mapping[str, Any], resources: Resources, *, head: str, fast: bool,
        options: Mapping[str, bool],
    ) -> None:  # fmt: skip
        self.gated = "gate_up" in weights
        self.names = ("gate_up", "down") if self.gated else ("fc1", "fc2")
        self.first, self.second = (self._product(facts, weights, n, resources, head, fast, options) for n in self.names)
        self.activation, self.width = str(facts["attrs.activation"]), weights[self.names[1]].shape[0]

    @staticmethod
    def _product(
        facts: Facts, weights: Mapping[str, Any], name: str, resources: Resources, head: str, fast: bool,
        options: Mapping[str, bool],
    ) -> Product:  # fmt: skip
        quant = facts.under(f"{head}parts.{name}.quant")
        return product_of(weights[name], weights.get(f"{name}_bias"), quant, resources, fast=fast, options=options)

    def output(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Where the results of no rows are."""
        shape = (*x.shape[:-1], self.width)
        return torch.empty(shape, dtype=torch.bfloat16, device=x.device) if out is None else out

    def __call__(self, x: Quantized, shape: tuple[int, ...], out: torch.Tensor | None) -> torch.Tensor:
        """The block of quantized rows, in ``shape`` but for the last dimension."""
        hidden = self.first(*x, torch.bfloat16)
        between = self.second.activated(hidden, self.activation, gated=self.gated)
        return placed(self.second, between, (*shape, self.width), torch.bfloat16, out)

    def refresh(self, new: Mapping[str, Any]) -> None:
        for product, name in zip((self.first, self.second), self.names, strict=True):
            product.refresh(new[name], new.get(f"{name}_bias"))


def prepare(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, fast: bool = False
) -> Prepared:
    block = Block(facts, weights, resources, head="", fast=fast, options=overlapping(facts, params))

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        if not x.numel():
            return block.output(x, out)
        return block(block.first.quantized(x.reshape(-1, x.shape[-1])), x.shape[:-1], out)

    return Prepared(run, refresh=block.refresh)


def prepare_normed(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, fast: bool = False
) -> Prepared:
    block = Block(facts, weights, resources, head="parts.block.", fast=fast, options=overlapping(facts, params))
    norm = Norm(facts, weights["norm_weight"])

    def run(
        x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        if not x.numel():
            return block.output(x, out)
        return block(norm(x, residual, block.first), x.shape[:-1], out)

    def refresh(new: Mapping[str, Any]) -> None:
        norm.refresh(new["norm_weight"])
        block.refresh(new)

    return Prepared(run, refresh=refresh)


prepare_fast = functools.partial(prepare, fast=True)
prepare_normed_fast = functools.partial(prepare_normed, fast=True)
