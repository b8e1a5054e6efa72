"""torch's variable-length attention, which only a GPU has, by a stand-in that takes what the kernel takes; and rows of
q that belong to no request."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from harness import KERNELS, OPS, assert_close, compute, exact, oracle, prepare, run
from phyai.synthesize import synthesize
from phyai_backend_reference.torch_rows import sdpa


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int, max_k: int,
    dropout: float, causal: bool, debug: bool, *, scale: Any, window_size_left: int, window_size_right: int,
    seqused_k: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Attention, refusing what FlashAttention-2's binding refuses; rows that no sequence has are left.

    Windows are as ``mha_varlen_fwd`` and ``set_params_fprop`` make them: one that reaches over all keys is none, and
    where only the other side has one, this side ends after ``max_k`` keys.
    """
    left = -1 if window_size_left >= max_k else window_size_left
    right = 0 if causal else -1 if window_size_right >= max_k else window_size_right
    local = left >= 0 or right >= 0
    left, right = (max_k if local and size < 0 else size for size in (left, right))
    if max_q == 1 and not local and q.shape[1] > k.shape[1] and len(q) != len(cu_q) - 1:
        raise RuntimeError("shape is invalid for input: one query is taken to be of every sequence")
    for name, tensor in {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "seqused_k": seqused_k}.items():
        if tensor is not None and not (tensor.is_contiguous() and tensor.dtype == torch.int32):
            raise RuntimeError(f"{name} must be contiguous")
    if len(cu_q) != len(cu_k) or (seqused_k is not None and len(seqused_k) != len(cu_q) - 1):
        raise RuntimeError("cu_seqlens must have batch + 1 elements, seqused_k batch")
    o = torch.full_like(q, float("nan"))
    for b in range(len(cu_q) - 1):
        own, start = slice(int(cu_q[b]), int(cu_q[b + 1])), int(cu_k[b])
        keys = slice(start, int(cu_k[b + 1]) if seqused_k is None else start + int(seqused_k[b]))
        rows, k_own, v_own = (t.double().transpose(0, 1)[None] for t in (q[own], k[keys], v[keys]))
        at = torch.arange(rows.shape[2])[:, None] + k_own.shape[2] - rows.shape[2] - torch.arange(k_own.shape[2])
        keep = (at <= left) & (at >= -right) if local else torch.ones_like(at, dtype=torch.bool)
        given = torch.nn.functional.scaled_dot_product_attention(
            rows, k_own, v_own, attn_mask=keep, enable_gqa=True, scale=scale
        )
        o[own] = given[0].transpose(0, 1).masked_fill(~keep.any(1)[:, None, None], 0)
    return (o,)


class Aten:
    """torch's own operators, but for that one."""

    _flash_attention_forward = staticmethod(flash)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.ops.aten, name)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "aten", Aten())


def strided(t: torch.Tensor) -> torch.Tensor:
    return t.unsqueeze(-1).repeat_interleave(2, -1)[..., 0]


@pytest.mark.parametrize("change", [lambda t: t, strided], ids=["contiguous", "strided"])
@pytest.mark.parametrize(
    ("id", "name"),
    [("torch.attention.varlen", "small.ragged"), ("torch.attention_paged.varlen", "small.slab")],
)
def test_boundaries_and_lengths_may_lie_anyhow(id: str, name: str, change: Any) -> None:
    op = OPS[KERNELS[id].op]
    spec = next(spec for spec in op.arg_specs if spec.name == name)
    plain = synthesize(op, spec)
    inputs = {n: None if t is None else change(t) for n, t in plain.inputs.items()}
    call = attrs.evolve(plain, inputs=inputs, metadata={n: change(t) for n, t in plain.metadata.items()})
    assert_close(call, compute(KERNELS[id], call), exact(op, spec, None), id)


@pytest.mark.parametrize(
    "id",
    ["reference.attention_paged", *(f"torch.attention_paged.{v}" for v in ("sdpa_flash", "sdpa_math", "varlen"))],
)
@pytest.mark.parametrize("served", [0, 1, 7], ids=lambda count: f"{count} rows served")
def test_rows_of_no_request_are_zero(id: str, served: int) -> None:
    import oracles

    op = OPS["attention_paged"]
    call = synthesize(op, next(spec for spec in op.arg_specs if spec.name == "small.slab"))
    ends = [0, served // 2, served]
    call.metadata["cu_seqlens_q"].copy_(torch.tensor(ends))
    out = torch.full_like(call.inputs["q"], float("nan"))
    got = run(prepare(KERNELS[id], call), call, out)
    assert_close(call, got, oracle(oracles.attention_paged, call), id)
    assert not got[0][served:].any()


@pytest.mark.parametrize("window", [None, 1, 3, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("lengths", "key_lengths", "rest"),
    [
        ([33], [7], 0), ([7], [7], 3), ([1], [5], 0), ([0, 0, 1, 0], [2, 0, 3, 1], 0), ([0, 0], [4, 1], 1),
        ([5, 2], [0, 9], 2),
    ],
    ids=["many queries", "rows of no sequence", "one query", "empty sequences", "only rows of none", "no keys"],
)  # fmt: skip
def test_ragged_attention_is_the_references(
    lengths: list[int], key_lengths: list[int], rest: int, causal: bool, window: int | None
) -> None:
    from phyai.facts import Facts

    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, sum(lengths) + rest, 6, 8, generator=generator)
    k, v = (torch.randn(1, sum(key_lengths), 2, 8, generator=generator) for _ in range(2))
    cu_q, cu_k = (torch.tensor([0, *n], dtype=torch.int32).cumsum(0, dtype=torch.int32) for n in (lengths, key_lengths))
    facts = Facts({"attrs.layout": "ragged", "attrs.causal": causal, "dtype.o": "fp32"}
                  | ({} if window is None else {"attrs.window": window}))  # fmt: skip
    got, want = (
        KERNELS[f"{id}"].load()(facts, {}, {}, None).run(q, k, v, None, cu_q, cu_k)  # type: ignore[arg-type]
        for id in ("torch.attention.varlen", "reference.attention")
    )
    torch.testing.assert_close(got, want)
