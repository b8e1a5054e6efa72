"""``torch.attention.*``: SDPA's backends, and variable-length flash attention."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources

from phyai_backend_reference.numerics import give
from phyai_backend_reference.reference.attention import batch
from phyai_backend_reference.torch_rows import sdpa


def _padded(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, backend: sdpa.Backend
) -> Prepared:
    attend = sdpa.attention(backend, facts)

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
        cu_seqlens_q: None = None,
        cu_seqlens_k: None = None,
        out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:
        if q.dim() == 4:
            return give(attend(q, k, v, mask), q.dtype, out)
        rows, keys, values = (t.reshape(batch(t), *t.shape[-3:]) for t in (q, k, v))
        return give(attend(rows, keys, values, mask).reshape(q.shape), q.dtype, out)

    return Prepared(run)


prepare_flash = functools.partial(_padded, backend=sdpa.flash)
prepare_cudnn = functools.partial(_padded, backend=sdpa.cudnn)
prepare_efficient = functools.partial(_padded, backend=sdpa.efficient)
prepare_math = functools.partial(_padded, backend=sdpa.math)


def prepare_varlen(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    attend = sdpa.varlen(facts)

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        state: object = None,
    ) -> torch.Tensor:
        rows, keys, values = (t.reshape(-1, *t.shape[-2:]) for t in (q, k, v))
        assert cu_seqlens_q is not None
        assert cu_seqlens_k is not None
        # rows of no sequence are one more, without keys: its results are the zeros that the op asks for
        starts = torch.nn.functional.pad(cu_seqlens_q, (0, 1), value=len(rows))
        o = attend(rows, keys, values, starts, torch.cat((cu_seqlens_k, cu_seqlens_k[-1:])), len(keys))
        return give(o.reshape(q.shape), q.dtype, out)

    return Prepared(run)
