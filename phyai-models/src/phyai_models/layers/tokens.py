"""Ragged tokens of a batch of requests, and the cache that their keys and values lie in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch
from phyai.errors import CaptureError, KernelFailure
from phyai.memory import may_be_the_kernels

if TYPE_CHECKING:
    from phyai.dispatch import Site


@attrs.frozen(eq=False)
class _Plan:
    """What one site planned, for all sites that plan alike."""

    site: Site
    dims: Mapping[str, int]
    state: Any


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
    _planned: dict[object, _Plan] = attrs.field(factory=dict, init=False, repr=False)
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
                self._planned[key] = _Plan(site, dims, self._plan(site, dims))
            self._states[site] = self._planned[key].state
        return self._states[site]

    def replan(self) -> None:
        """Plan again, after other lengths were written into the tensors of ``metadata``.

        What was captured in a CUDA graph keeps the state that it was captured with, so plans must change that one.

        Raises:
            CaptureError: a kernel planned a state that differs from the one it returned before.
            KernelFailure: a kernel could not plan; it is named.
        """
        for plan in self._planned.values():
            state = self._plan(plan.site, plan.dims)
            if state is not plan.state and state != plan.state:
                raise CaptureError(
                    f"{plan.site.name}: its kernel plans a new state for new lengths, which a captured graph cannot "
                    "follow; it must declare capture=NEVER, or ask for the promise fixed_lengths"
                )

    def _plan(self, site: Site, dims: Mapping[str, int]) -> Any:
        try:
            return site.plan(self.metadata, **dims)
        except Exception as error:
            if not may_be_the_kernels(error):
                raise
            kernel = site.decide(**dims).kernel
            assert kernel is not None  # it has just planned
            raise KernelFailure.of(error, site=site.name, kernel=kernel.id, meanwhile="it planned") from error

    def forget_plans(self) -> None:
        """Plan anew at the next call, because other kernels may be chosen."""
        self._planned.clear()
        self._states.clear()


@attrs.frozen(eq=False)
class KVCache:
    """Keys and values of every layer: ``k`` and ``v`` are ``[layers, pages, page_size, kv_heads, head_dim]``, one page
    per request; ``keys`` and ``values`` are their layers."""

    k: torch.Tensor
    v: torch.Tensor
    keys: tuple[torch.Tensor, ...] = attrs.field(init=False, default=attrs.Factory(lambda c: c.k.unbind(), True))
    values: tuple[torch.Tensor, ...] = attrs.field(init=False, default=attrs.Factory(lambda c: c.v.unbind(), True))

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
        shape = (layers, pages, page_size, kv_heads, head_dim)
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes
