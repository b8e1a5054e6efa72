"""``cuda.quantize_activation``: codes and scales bit for bit as the reference's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from machine import DEVICE, Resources, normal
from phyai.facts import Facts
from phyai_backend_cuda.records.quantized import KERNELS
from phyai_backend_reference.reference.quantize_activation import prepare as reference_quantize

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.usefixtures("correct_rounding")

ROW = next(kernel for kernel in KERNELS if kernel.id == "cuda.quantize_activation")


def quantize(x: torch.Tensor, *given: torch.Tensor, out: Any = None, **attributes: Any) -> list[list[torch.Tensor]]:
    """Codes and scales of our row, and of the reference."""
    facts = Facts({f"attrs.{name}": value for name, value in attributes.items()})
    lent = Resources()
    ours, reference = (prepare(facts, {}, {}, lent) for prepare in (ROW.load(), reference_quantize))
    return [list(ours.run(x, *given, out=out)), list(reference.run(x, *given))]


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    raw = torch.float32 if got.dtype == torch.float32 else torch.uint8
    assert torch.equal(got.contiguous().view(raw), want.contiguous().view(raw))


@pytest.mark.parametrize("format", ["int8", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize(("granularity", "group_size"), [("token", 0), ("tensor", 0), ("group", 12)])
@pytest.mark.parametrize("shape", [(5, 36), (2, 3, 1200), (7, 2400), (1, 12)])
def test_codes_and_scales_are_the_references_bit_for_bit(
    format: str, granularity: str, group_size: int, shape: tuple[int, ...]
) -> None:
    x = normal(*shape) * torch.logspace(-3, 2, shape[-1], device=DEVICE).bfloat16()
    x[..., 0, :] = 0  # a row without a scale of its own
    attributes = {"format": format, "granularity": granularity}
    got, want = quantize(x, **attributes, **({"group_size": group_size} if group_size else {}))
    for ours, theirs in zip(got, want, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("format", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_static_scale_clamps_and_is_returned(format: str, dtype: torch.dtype) -> None:
    x, scale = normal(6, 40, dtype=dtype) * 100, torch.tensor([0.3], device=DEVICE)
    got, want = quantize(x, scale, format=format, granularity="tensor")
    for ours, theirs in zip(got, want, strict=True):
        same(ours, theirs)
    assert int((got[0].float().abs() == {"int8": 127, "fp8_e4m3": 448}[format]).sum()) > 3


@pytest.mark.parametrize("granularity", ["token", "tensor"])
def test_integers_round_half_to_even(granularity: str) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0, 126.5]], device=DEVICE)
    codes = quantize(x, format="int8", granularity=granularity)[0][0]
    assert codes.flatten().tolist() == [127, 0, 2, 2, 0, -2, -127, 126]


def test_inputs_and_outputs_may_have_gaps() -> None:
    x = normal(40, 6).T
    codes, scales = torch.zeros(6, 80, dtype=torch.int8, device=DEVICE), torch.zeros(6, 3, device=DEVICE)
    got, want = quantize(x, out=(codes[:, ::2], scales[:, :1]), format="int8")
    same(got[0], want[0])
    same(got[1], want[1])
    assert not codes[:, 1::2].any()
    assert not scales[:, 1:].any()


@pytest.mark.parametrize(("granularity", "shape"), [("tensor", (1,)), ("token", (0, 1))])
def test_no_rows_are_no_work(granularity: str, shape: tuple[int, ...]) -> None:
    codes, scales = quantize(torch.empty(0, 16, device=DEVICE), format="int8", granularity=granularity)[0]
    assert codes.shape == (0, 16)
    assert scales.shape == shape
    assert bool((scales == 1).all())


def test_a_nan_stays_one() -> None:
    x = normal(3, 32)
    x[1, 5] = torch.nan
    codes = quantize(x, format="fp8_e4m3")[0][0].float()
    assert codes.isnan().nonzero().tolist() == [[1, 5]]
