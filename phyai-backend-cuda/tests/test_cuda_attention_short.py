"""``cuda.attention.short`` on a Hopper: against float64, at its edges, and bit for bit against itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from machine import Resources, normal
from phyai.facts import Facts
from phyai_backend_cuda.attention.short import prepare

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]


def row(heads: int = 16, dim: int = 72, kv_heads: int | None = None, dtype: str = "bf16", **given: Any) -> Any:
    facts = {
        "shape.heads": heads, "shape.kv_heads": kv_heads or heads, "shape.head_dim": dim, "dtype.q": dtype,
        "device.sm_count": 132, **{f"attrs.{name}": given.pop(name) for name in ("scale",) if name in given},
    }  # fmt: skip
    return prepare(Facts(facts), {}, given, Resources()).run


def fused(n: int, s: int, heads: int = 16, dim: int = 72, dtype: torch.dtype = torch.bfloat16) -> Any:
    """q, k and v as views of one projection."""
    return normal(n, s, 3, heads, dim, dtype=dtype).unbind(-3)


def wanted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.isfinite().all()
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("s", [1, 2, 8, 63, 64, 65, 100, 128, 129, 192, 196, 250, 256, 257, 330, 448, 511, 512])
def test_every_length(s: int, groups: int) -> None:
    qkv = fused(2, s)
    assert error(row(groups=groups)(*qkv), wanted(*qkv)) < 4e-3


@pytest.mark.parametrize(("dim", "dtype"), [*((dim, "bf16") for dim in range(8, 136, 8)), (72, "fp16"), (64, "fp16")])
def test_every_size_of_a_head(dim: int, dtype: str) -> None:
    qkv = fused(1, 200, 3, dim, {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype])
    assert error(row(3, dim, dtype=dtype)(*qkv), wanted(*qkv)) < (4e-3 if dtype == "bf16" else 6e-4)


@pytest.mark.parametrize("dim", [8, 72, 96, 104, 128])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_longest_that_fit(dim: int, groups: int) -> None:
    qkv = fused(1, 512 if dim <= 96 else 320, 2, dim)
    assert error(row(2, dim, groups=groups)(*qkv), wanted(*qkv)) < 4e-3


def test_rows_that_lie_anyhow() -> None:
    rows = normal(2, 3, 5, 90, 72)
    forms = {
        "heads before rows": [rows[:, i].transpose(1, 2) for i in range(3)],
        "one sequence, one head": [rows[:1, i, :1].transpose(1, 2) for i in range(3)],
        "keys that are one": [rows[:, 0].transpose(1, 2), rows[:, 1, :, :1].transpose(1, 2).expand(2, 90, 5, 72),
                              rows[:, 2].transpose(1, 2)],
        "not at a multiple of 16 bytes": [normal(2, 90, 5, 73, seed=i)[..., 1:] for i in range(3)],
        "backwards in memory": [normal(90, 2, 72, 5, seed=i).permute(1, 0, 3, 2) for i in range(3)],
    }  # fmt: skip
    for form, qkv in forms.items():
        heads = qkv[0].shape[2]
        assert error(row(heads)(*qkv), wanted(*qkv)) < 4e-3, form


@pytest.mark.parametrize(("queries", "keys"), [(1, 256), (300, 70), (1000, 256), (64, 1)])
def test_other_numbers_of_queries_than_keys_and_shared_heads(queries: int, keys: int) -> None:
    q, k, v = normal(3, queries, 6, 64), normal(3, keys, 2, 64, seed=1), normal(3, keys, 2, 64, seed=2)
    assert error(row(6, 64, 2)(q, k, v), wanted(q, k, v)) < 4e-3


@pytest.mark.parametrize("scale", [1e-6, 0.3, 5.0, 100.0])
def test_scores_of_every_size(scale: float) -> None:
    """Up to some thousands, where one key gets everything and what sums of float32 lose is seen."""
    q, k, v = fused(2, 256)
    assert error(row(scale=scale)(q, k, v), wanted(q, k, v, scale)) < (4e-3 if scale < 100 else 1e-2)


def test_equal_keys_give_the_mean_of_the_values() -> None:
    q, k, v = fused(1, 77)
    k = k[:, :1].expand_as(k)
    want = v.double().mean(1, keepdim=True).expand(q.shape)
    assert float((row()(q, k, v).double() - want).abs().max()) < 4e-3


def test_a_key_far_above_all_others_gives_its_value() -> None:
    q, k, v = fused(1, 256)
    q, k = torch.ones_like(q), torch.zeros_like(k)
    k[:, 200] = 1000
    assert torch.equal(row()(q, k, v), v[:, 200:201].expand(q.shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_at_the_edge_of_their_type_do_not_overflow(dtype: torch.dtype) -> None:
    """As long as the sum over all keys, which is divided last, fits into fp32."""
    q, k, v = fused(1, 130, dtype=dtype)
    v = torch.full_like(v, torch.finfo(dtype).max if dtype == torch.float16 else 2.0**120)
    assert torch.equal(row(dtype="fp16" if dtype == torch.float16 else "bf16")(q, k, v), v)


def test_a_row_is_the_same_whatever_is_beside_it_and_however_blocks_are_cut() -> None:
    q, k, v = fused(4, 196)
    together = row()(q, k, v)
    for groups in (1, 2):
        run = row(groups=groups)
        assert torch.equal(run(q, k, v), together)
        assert torch.equal(run(q[2:3], k[2:3], v[2:3]), together[2:3])
        assert torch.equal(run(q[:, 70:80], k, v), together[:, 70:80])


def test_nothing_but_the_output_is_written_and_strides_are_kept() -> None:
    q, k, v = fused(2, 100)
    room = torch.full((2, 104, 20, 72), 3.0, device="cuda", dtype=torch.bfloat16)
    out = room[:, :100, 2:18]
    assert row()(q, k, v, out=out) is out
    assert torch.equal(out, row()(q, k, v))
    assert (room[:, 100:] == 3).all()
    assert (room[:, :, :2] == 3).all()
    assert (room[:, :, 18:] == 3).all()


def test_inputs_are_those_that_the_kernel_in_front_writes() -> None:
    qkv = normal(3, 256, 3, 16, 72)
    run, held = row(), torch.zeros_like(qkv)
    want = [run(*(qkv * factor).unbind(-3)) for factor in (1, 2)]
    for factor in (1, 2, 1, 2):
        torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
        torch.mul(qkv, factor, out=held)
        assert torch.equal(run(*held.unbind(-3)), want[factor - 1])
