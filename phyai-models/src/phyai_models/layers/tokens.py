"""Ragged tokens of a batch of requests, and the cache that their keys and values lie in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from phyai.dispatch import Site


@attrs.frozen(eq=False)
class Tokens:
    """Where the rows of a flat ``[T, width]`` tensor belong.

    ``positions`` (int64 ``[T]``) feed the rotary embedding, ``slots`` (int64 ``[T]``) say where their keys go.
    ``metadata`` is what ``attention_paged`` plans with (``cu_seqlens_q``, ``kv_indptr``, ``kv_indices``,
    ``last_page_len``, all int32), one page per request.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    metadata: Mapping[str, torch.Tensor]
    _planned: dict[object, Any] = attrs.field(factory=dict, init=False, repr=False)
    _states: dict[Site, Any] = attrs.field(factory=dict, init=False, repr=False)

    def to(self, device: torch.device) -> Tokens:
        """The same tokens on another device, with nothing planned."""
        metadata = {name: value.to(device) for name, value in self.metadata.items()}
        return Tokens(self.positions.to(device), self.slots.to(device), metadata)

    def state(self, site: Site, cache: torch.Tensor) -> Any:
        """What the kernel of ``site`` planned for these tokens; sites that plan alike share it.

        ``cache`` is the site's ``[pages, page_size, kv_heads, head_dim]`` tensor of keys.
        """
        if site not in self._states:
            dims = {"T": len(self.positions), "pages": cache.shape[0], "page_size": cache.shape[1]}
            key = site.plan_key(**dims)
            if key not in self._planned:
                self._planned[key] = site.plan(self.metadata, **dims)
            self._states[site] = self._planned[key]
        return self._states[site]


@attrs.frozen
class KVCache:
    """Keys and values of every layer: two tensors ``[B, L, kv_heads, head_dim]`` a layer, one page per request."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @classmethod
    def empty(
        cls,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """A cache with nothing in it. It starts at zero, since kernels may read whole pages and mask afterwards."""

        def slabs() -> tuple[torch.Tensor, ...]:
            return tuple(
                torch.zeros(pages, page_size, kv_heads, head_dim, dtype=dtype, device=device) for _ in range(layers)
            )

        return cls(slabs(), slabs())
