"""A residual norm in front of a product of quantized inputs."""

from __future__ import annotations

import torch
from phyai.facts import Facts, number

from phyai_backend_cuda.quantized.product import Product, Quantized
from phyai_backend_cuda.runtime.memory import aligned, readable, rows_of, settle


class Norm:
    """``residual += x``, and the RMS norm of that as the codes that a product wants."""

    def __init__(self, facts: Facts, weight: torch.Tensor) -> None:
        self.weight = aligned(weight)
        self.eps, self.offset = number(facts, "attrs.eps", 1e-6), number(facts, "attrs.offset", 0)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor, product: Product) -> Quantized:
        rows, sums = readable(rows_of(x)), readable(rows_of(residual))
        quantized = product.normed(rows, sums, self.weight, eps=self.eps, offset=self.offset)
        settle(residual, sums)
        return quantized

    def refresh(self, weight: torch.Tensor) -> None:
        """Take new values in place."""
        self.weight.copy_(weight)
