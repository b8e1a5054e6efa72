"""Where a layer sits: its names, its role, its precision, and the dispatcher that its call sites bind to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch
from phyai.facts import FactValue, canonical_dtype
from phyai.quant import QuantPlan

if TYPE_CHECKING:
    from phyai.dispatch import Chain, Dispatcher, Site


@attrs.frozen
class Scope:
    """The place of one layer in a model.

    ``path`` is the layer's module path, the fact ``layer`` of its calls. ``source`` is the prefix of its tensors'
    names in the checkpoint. ``dtype`` is that of its activations and matrices, ``norm_dtype`` that of the
    parameters of normalizations. ``facts`` hold for every call site of the model. ``quantization`` says which
    matrices are quantized when they are loaded. ``capture``: call sites will run inside CUDA graphs;
    ``fixed_lengths``: each of those graphs serves one set of sequence lengths. ``cache`` has the dimensions ``pages``
    and ``page_size`` of the cache of keys and values, which calls of a model always give whole. ``rows`` are the least
    and the greatest number of rows (M) of its products, where they are known.
    """

    dispatcher: Dispatcher
    device: torch.device
    path: str
    source: str
    dtype: torch.dtype
    norm_dtype: torch.dtype
    role: str = "head"
    facts: Mapping[str, FactValue] = attrs.field(factory=dict)
    quantization: QuantPlan = attrs.field(factory=QuantPlan)
    capture: bool = False
    fixed_lengths: bool = False
    cache: Mapping[str, int] = attrs.field(factory=dict)
    rows: tuple[int, int] | None = None

    def at(self, name: str, source: str | None = None, **changes: Any) -> Scope:
        """The scope of the part called ``name``; ``source`` is its name in the checkpoint when that differs."""
        return attrs.evolve(
            self, path=join(self.path, name), source=join(self.source, name if source is None else source), **changes
        )

    def bind(
        self,
        op: str,
        *,
        dtypes: Mapping[str, torch.dtype],
        weights: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        dims: Mapping[str, int] | None = None,
        present: tuple[str, ...] = (),
        facts: Mapping[str, FactValue] | None = None,
        chain: Chain | None = None,
        layouts: Mapping[str, str] | None = None,
    ) -> Site:
        """Bind a call site of ``op`` here; see :meth:`phyai.dispatch.Dispatcher.bind`."""
        return self.dispatcher.bind(
            op,
            role=self.role,
            layer=self.path,
            weights=dict(weights or {}),
            attrs=dict(attrs or {}),
            dtypes={name: canonical_dtype(str(dtype)) for name, dtype in dtypes.items()},
            dims=dict(dims or {}),
            present=present,
            facts={**self.facts, **(facts or {})},
            capture=self.capture,
            rows=self.rows,
            chain=chain,
            layouts=layouts,
        )

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An uninitialized parameter on the scope's device."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)


def join(*parts: str) -> str:
    """Dotted names, leaving out empty ones."""
    return ".".join(part for part in parts if part)
