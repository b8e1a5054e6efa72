"""Kernels that read their weights before the kernel in front has ended: what may be written then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from phyai.kernel import Prepared

from phyai_backend_cuda.runtime.launch import settled


def settling(run: Callable[..., Any], refresh: Callable[[Mapping[str, Any]], None]) -> Prepared:
    """``run`` with its ``refresh``: weights are waited for now, and each time others have been written."""
    settled()

    def refreshed(new: Mapping[str, Any]) -> None:
        refresh(new)
        settled()

    return Prepared(run, refresh=refreshed)


class Product(Protocol):
    """A product by one weight, as :mod:`phyai_backend_cuda.skinny` and :mod:`phyai_backend_cuda.dense` have it."""

    def load(self, rows: tuple[int, int] | None) -> None: ...

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor: ...

    def refresh(self, weight: Any, bias: torch.Tensor | None) -> None: ...


def prepared_gemm(product: Product, rows: tuple[int, int] | None) -> Prepared:
    """``product`` at a call site of ``gemm`` for such numbers of ``rows``."""
    product.load(rows)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return product(x, out)

    def refresh(new: Mapping[str, Any]) -> None:
        product.refresh(new["weight"], new.get("bias"))

    return settling(run, refresh)
