"""``cuda.qkv_rope_kv_write`` of ``fp8_a8`` and ``int8_a8``, also behind a norm: three launches.

::

    x           → codes, one scale per row (or one); of a norm, as it is computed
    projection  → 16 bits; in FP8 of codes alone, where scales by rows or columns are applied by what follows
    rotation    → queries, and the caches
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.quantized.norm import Norm
from phyai_backend_cuda.quantized.product import Fp8Product, Quantized, product_of
from phyai_backend_cuda.runtime.memory import output
from phyai_backend_cuda.triton_rows.common import overlapping
from phyai_backend_cuda.triton_rows.rope import SplitRopeWrite


class Projection:
    """To queries, keys and values, of quantized inputs. ``head`` is what stands before the facts of the product."""

    def __init__(
        self, facts: Facts, weights: Mapping[str, Any], resources: Resources, *, head: str, fast: bool,
        options: Mapping[str, bool],
    ) -> None:  # fmt: skip
        quant, self.bias = facts.under(f"{head}parts.qkv.quant"), weights.get("bias")
        self.product = product_of(weights["weight"], self.bias, quant, resources, fast=fast, options=options)
        self.cos_sin = weights["cos_sin"].contiguous()
        self.split = SplitRopeWrite(facts, self.cos_sin, options)

    def output(self, x: torch.Tensor, k_cache: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Where the queries go."""
        kv_heads, dim = k_cache.shape[2:]
        return output(x, out, len(x), self.product.weight.shape[0] // dim - 2 * kv_heads, dim)

    def __call__(self, x: Quantized, q: torch.Tensor, *places: torch.Tensor) -> torch.Tensor:
        """Write the queries of quantized rows to ``q``, and what else there is to the other ``places``."""
        product = self.product
        if isinstance(product, Fp8Product) and product.by_rows and self.bias is None:
            codes, scales = x
            self.split(product.unscaled(codes, q.dtype), q, *places, scales=(scales, product.scale))
        else:
            self.split(product(*x, q.dtype), q, *places)
        return q

    def refresh(self, new: Mapping[str, Any]) -> None:
        self.product.refresh(new["weight"], new.get("bias"))
        self.cos_sin.copy_(new["cos_sin"])


def prepare(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, fast: bool = False
) -> Prepared:
    projection = Projection(facts, weights, resources, head="", fast=fast, options=overlapping(facts, params))

    def run(
        x: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor,
        out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        q = projection.output(x, k_cache, out)
        if not len(x):
            return q
        return projection(projection.product.quantized(x), q, positions, k_cache, v_cache, slots)

    return Prepared(run, refresh=projection.refresh)


def prepare_normed(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, fast: bool = False
) -> Prepared:
    options = overlapping(facts, params)
    projection = Projection(facts, weights, resources, head="parts.block.", fast=fast, options=options)
    norm = Norm(facts, weights["norm_weight"])

    def run(
        x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
        slots: torch.Tensor, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        q = projection.output(x, k_cache, out)
        if not len(x):
            return q
        return projection(norm(x, residual, projection.product), q, positions, k_cache, v_cache, slots)

    def refresh(new: Mapping[str, Any]) -> None:
        norm.refresh(new["norm_weight"])
        projection.refresh(new)

    return Prepared(run, refresh=refresh)


prepare_fast = functools.partial(prepare, fast=True)
prepare_normed_fast = functools.partial(prepare_normed, fast=True)
