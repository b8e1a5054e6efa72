"""``patch_embedding``: patches gathered from their images, multiplied, and their positions added, in one launch."""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_cuda.runtime.memory import output, rows_of, settle

BLOCK_K = 64


@triton.jit(do_not_specialize=["M"])
def _patch_embedding(
    x, position, weight, bias, y, x_steps, position_step, y_step, M, patches, across, N: tl.constexpr, K: tl.constexpr,
    WIDTH: tl.constexpr, PATCH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """BM patches times BN rows of the weight, which are WIDTH elements apart and 0 from K on.

    The elements of a patch's row lie side by side in the image as in the weight: with an even PATCH two are copied at
    once, asynchronously.
    """
    n, m = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BM + tl.arange(0, BM)
    here, place = m < M, m % patches
    image, down, right = (m // patches).to(tl.int64), (place // across).to(tl.int64), (place % across).to(tl.int64)
    corner = x + (image * x_steps[0] + down * PATCH * x_steps[2] + right * PATCH * x_steps[3])[:, None]
    rows = weight + n[None, :].to(tl.int64) * WIDTH
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        channel, row, column = k // (PATCH * PATCH), k // PATCH % PATCH, k % PATCH
        at = channel.to(tl.int64) * x_steps[1] + row.to(tl.int64) * x_steps[2] + column.to(tl.int64) * x_steps[3]
        a = tl.load(corner + at[None, :], here[:, None] & (k < K)[None, :], 0.0).to(weight.dtype.element_ty)
        b = tl.load(rows + k[:, None], (n < N)[None, :], 0.0)
        acc = tl.dot(a, b, acc)
    keep = here[:, None] & (n < N)[None, :]
    if BIAS:
        acc += tl.load(bias + n, n < N, 0.0).to(tl.float32)[None, :]
    acc += tl.load(position + place[:, None].to(tl.int64) * position_step + n[None, :], keep, 0.0).to(tl.float32)
    tl.store(y + m[:, None].to(tl.int64) * y_step + n[None, :], acc, keep)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    outputs, _, patch, _ = weight.shape
    elements = weight[0].numel()
    width = triton.cdiv(elements, BLOCK_K) * BLOCK_K
    matrix = torch.nn.functional.pad(weight.flatten(1), (0, width - elements))  # rows begin at multiples of 128 bytes
    held = {"matrix": matrix[:, :elements], "bias": None if bias is None else bias.contiguous()}
    keep = in_place(held)

    def run(
        x: torch.Tensor, position: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        y = output(weight, out, len(x), len(position), outputs)
        if y.numel():
            tokens, given = rows_of(position), rows_of(y)
            m = len(given)
            block_m, block_n, warps, stages = 64, 128, 4, 4
            _patch_embedding[(triton.cdiv(outputs, block_n), triton.cdiv(m, block_m))](
                x, tokens, matrix, held["bias"], given, x.stride(), tokens.stride(0), given.stride(0), m, len(tokens),
                x.shape[3] // patch, outputs, elements, width, patch, block_m, block_n, BLOCK_K, bias is not None,
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            settle(y, given)
        return y

    def refresh(new: Mapping[str, Any]) -> None:
        keep({"matrix": new["weight"].flatten(1), "bias": new.get("bias")})

    return Prepared(run, refresh=refresh)
