"""What results are held to where values are quantized between two products."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch
from phyai.ops import CORE_OPS
from phyai.testing.compare import QUANTIZED_BETWEEN, QUANTIZED_INPUT, QUANTIZED_TWICE, mismatch, tolerance_of

OPS = {op.name: op for op in CORE_OPS}
BF16 = dict.fromkeys(("x", "gate_up", "down", "fc1", "fc2", "weight", "y"), "bf16")


def coded(x: torch.Tensor) -> torch.Tensor:
    """What the FP8 codes of x, one scale per row, stand for."""
    scale = x.abs().amax(1, keepdim=True) / 448
    return (x / scale).float().to(torch.float8_e4m3fn).double() * scale


def block(
    rows: int, k: int, width: int, n: int, seed: int, between: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """A gated feed-forward block in float64 whose inputs become codes; ``between``: what is done to h before."""
    generator = torch.Generator().manual_seed(seed)
    x, gate, up, down = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[1] ** 0.5
        for shape in ((rows, k), (width, k), (width, k), (n, width))
    )
    x = coded(x * k**0.5)
    h = torch.nn.functional.gelu(x @ coded(gate).T) * (x @ coded(up).T)
    return coded(between(h)) @ coded(down).T


def rounded(h: torch.Tensor) -> torch.Tensor:
    return h.to(torch.bfloat16).double()


SIZES = [(256, 16, 128, 16), (64, 16, 16, 16), (32, 64, 1024, 64), (8, 1024, 1024, 64)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(6))
def test_codes_that_fall_to_the_other_side_are_allowed(size: tuple[int, int, int, int], seed: int) -> None:
    tolerance = tolerance_of(OPS["gated_mlp"], "y", BF16, quantized_input=True)
    want, got = (block(*size, seed, between) for between in (lambda h: h, rounded))
    assert not torch.equal(want, got)
    assert mismatch("y", got.bfloat16(), want, tolerance) is None


@pytest.mark.parametrize("size", SIZES[:3])
@pytest.mark.parametrize(
    "wrong",
    [lambda h: h * 1.06, lambda h: h.roll(1, 1), lambda h: torch.cat((h[:, :-8], -h[:, -8:]), 1)],
    ids=["larger by 6 %", "columns moved", "the sign of eight columns"],
)
def test_what_is_wrong_is_still_found(
    size: tuple[int, int, int, int], wrong: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    tolerance = tolerance_of(OPS["gated_mlp"], "y", BF16, quantized_input=True)
    want, got = (block(*size, 0, between) for between in (lambda h: h, wrong))
    assert mismatch("y", got.bfloat16(), want, tolerance) is not None


def test_only_blocks_of_several_products_quantize_in_between() -> None:
    for name in ("gated_mlp", "mlp"):
        assert tolerance_of(OPS[name], "y", BF16, quantized_input=True).row_rms == QUANTIZED_BETWEEN.row_rms
    for name in ("gemm", "qkv_rope_kv_write"):
        output = OPS[name].outputs[0].name
        tolerance = tolerance_of(OPS[name], output, {**BF16, output: "bf16"}, quantized_input=True)
        assert tolerance.row_rms == 0
        assert tolerance.relative_norm >= QUANTIZED_INPUT.relative_norm
    assert tolerance_of(OPS["gated_mlp"], "y", BF16).row_rms == 0


def test_a_row_allows_a_part_of_what_its_elements_usually_are() -> None:
    from phyai.op import Tolerance

    want = torch.tensor([[3.0, -3.0, 3.0, 0.0], [0.1, 0.0, 0.0, 0.0]])
    size = (27 / 4) ** 0.5
    near, far = want.clone(), want.clone()
    near[1, 2], far[1, 2] = 0.24 * size, 0.26 * size
    tolerance = Tolerance(0, 0, 1, 0.25)
    assert mismatch("y", near, want, tolerance) is None
    assert "y[1, 2]" in (mismatch("y", far, want, tolerance) or "")


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_sums_of_parts_that_meet_in_the_outputs_type_are_allowed_their_roundings(
    dtype: str, torch_dtype: torch.dtype
) -> None:
    g = torch.Generator().manual_seed(0)
    parts = torch.randn(4, 256, 64, generator=g, dtype=torch.float64)
    parts[3] -= parts[:3].sum(0) * (torch.rand(256, 64, generator=g) < 0.3)  # where they cancel each other
    want = parts.sum(0)
    got = parts[0].to(torch_dtype)
    for part in parts[1:]:
        got = got + part.to(torch_dtype)
    dtypes = {"x": dtype, "weight": dtype, "y": dtype}
    allowed = tolerance_of(OPS["gemm"], "y", dtypes, accumulation="output")
    assert mismatch("y", got, want, allowed) is None
    assert mismatch("y", got, want, tolerance_of(OPS["gemm"], "y", dtypes)) is not None
    assert mismatch("y", (parts[0] + parts[1] + parts[3]).to(torch_dtype), want, allowed) is not None


def test_more_products_than_two_behind_the_first_are_held_to_what_two_are() -> None:
    block = OPS["gated_mlp"]
    more = (attrs.evolve(block.parts[-1], name=name) for name in ("third", "fourth"))
    longer = attrs.evolve(block, parts=(*block.parts, *more))
    assert tolerance_of(longer, "y", BF16, quantized_input=True).relative_norm == QUANTIZED_TWICE.relative_norm
