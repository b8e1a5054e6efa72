"""``cuda.gated_mlp.fp8_a8_fused``, also behind a norm: the first product and its activation in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.gated.product import GatedProduct
from phyai_backend_cuda.quantized.norm import Norm
from phyai_backend_cuda.quantized.product import Fp8Product, Quantized, placed
from phyai_backend_cuda.triton_rows.common import overlapping


class Block:
    """A gated feed-forward block of quantized inputs. ``head`` is what stands before the facts of its parts."""

    def __init__(
        self, facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, head: str = ""
    ) -> None:
        options = overlapping(facts, params)
        self.first, self.second = (
            Fp8Product(
                weights[part], None, facts.under(f"{head}parts.{part}.quant"), resources, fast=True, options=options
            )
            for part in ("gate_up", "down")
        )
        activation, processors = str(facts["attrs.activation"]), whole(facts, "device.sm_count", 132)
        self.product = GatedProduct(self.first.codes, self.first.scale, activation, processors, self.second.given)

    def __call__(self, x: Quantized, shape: tuple[int, ...], out: torch.Tensor | None) -> torch.Tensor:
        """The block of quantized rows, in ``shape`` but for the last dimension."""
        (codes, scales), second = x, self.second
        dtype = torch.bfloat16 if second.given is None else torch.float8_e4m3fn
        h = torch.empty(len(codes), self.product.width, dtype=dtype, device=codes.device)
        self.product(codes, scales, h)
        if second.given is None:
            hidden = second.quantized(h)
        else:
            hidden = h, second.given.expand(len(h)).contiguous() if second.by_rows else second.given
        return placed(second, hidden, (*shape, second.weight.shape[0]), torch.bfloat16, out)

    def refresh(self, new: Mapping[str, Any]) -> None:
        self.first.refresh(new["gate_up"], None)
        self.second.refresh(new["down"], None)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    block = Block(facts, weights, params, resources)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return block(block.first.quantized(x.reshape(-1, x.shape[-1])), x.shape[:-1], out)

    return Prepared(run, refresh=block.refresh)


def prepare_normed(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    block, norm = Block(facts, weights, params, resources, "parts.block."), Norm(facts, weights["norm_weight"])

    def run(
        x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        return block(norm(x, residual, block.first), x.shape[:-1], out)

    def refresh(new: Mapping[str, Any]) -> None:
        norm.refresh(new["norm_weight"])
        block.refresh(new)

    return Prepared(run, refresh=refresh)
