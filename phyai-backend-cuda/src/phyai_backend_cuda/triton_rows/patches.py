"""``patch_embedding``: patches gathered as the rows of a matrix; then its product, with positions in the epilogue.

The second launch is set up, and reads positions, while the first one runs. Gathering in the product itself was slower:
every block of outputs gathers its patches anew (benchmarks/notes/rows.md).
"""

# ruff: noqa: ANN001, ANN202 - arguments of Triton functions are pointers and numbers

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from phyai_backend_cuda.runtime.memory import output, rows_of, settle

#: Patches, and elements of each, that a program gathers.
GATHERED = 16, 128
#: Outputs of a program, and elements of a step.
BLOCK_N, BLOCK_K = 128, 64
#: Patches of a program, warps and stages: where few programs fill the GPU, and where many do.
FEW, MANY = (64, 4, 8), (128, 8, 6)


@triton.jit(do_not_specialize=["M"])
def _gather(
    x, rows, x_steps, M, patches, across, K: tl.constexpr, WIDTH: tl.constexpr, PATCH: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Patches as rows of WIDTH elements, in the order of a weight's, zeros from K on.

    A patch's row lies together in the image as in the weight: with an even PATCH two elements are read at once.
    """
    if OVERLAP:
        gdc_launch_dependents()
    m, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BK + tl.arange(0, BK)
    here, place = (m < M)[:, None], m % patches
    image, down, right = (m // patches).to(tl.int64), (place // across).to(tl.int64), (place % across).to(tl.int64)
    channel, row, column = k // (PATCH * PATCH), k // PATCH % PATCH, k % PATCH
    corner = x + (image * x_steps[0] + down * PATCH * x_steps[2] + right * PATCH * x_steps[3])[:, None]
    at = channel.to(tl.int64) * x_steps[1] + row.to(tl.int64) * x_steps[2] + column.to(tl.int64) * x_steps[3]
    values = tl.load(corner + at[None, :], here & (k < K)[None, :], 0.0)
    tl.store(rows + m[:, None].to(tl.int64) * WIDTH + k[None, :], values, here & (k < WIDTH)[None, :])


@triton.jit(do_not_specialize=["M"])
def _multiply(
    rows, weight, bias, position, y, position_step, y_step, M, patches, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    n, m = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BM + tl.arange(0, BM)
    keep = (m < M)[:, None] & (n < N)[None, :]
    place = (m % patches)[:, None].to(tl.int64) * position_step
    added = tl.load(position + place + n[None, :], keep, 0.0)
    if OVERLAP:
        gdc_wait()
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(rows.load([tl.program_id(1) * BM, k]), weight.load([tl.program_id(0) * BN, k]).T, acc)
    if BIAS:
        acc += tl.load(bias + n, n < N, 0.0).to(tl.float32)[None, :]
    acc += added.to(tl.float32)
    tl.store(y + m[:, None].to(tl.int64) * y_step + n[None, :], acc, keep)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    outputs, _, patch, _ = weight.shape
    elements = weight[0].numel()
    width = triton.cdiv(elements, 8) * 8  # tensor maps ask for rows of whole 16 bytes
    # a copy, even without padding, and rows without gaps, even of a weight that lies outputs last
    matrix = torch.nn.functional.pad(weight.flatten(1), (0, width - elements)).contiguous()
    held = {"matrix": matrix[:, :elements], "bias": None if bias is None else bias.contiguous()}
    keep = in_place(held)
    described = TensorDescriptor.from_tensor(matrix, [BLOCK_N, BLOCK_K])
    processors = whole(facts, "device.sm_count", 132)
    overlap = weight.is_cuda

    def run(
        x: torch.Tensor, position: torch.Tensor, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        patches = len(position)
        y = output(weight, out, len(x), patches, outputs)
        m = len(x) * patches
        if m:
            tokens, given = rows_of(position), rows_of(y)
            rows = weight.new_empty(m, width)
            tiles = triton.cdiv(outputs, BLOCK_N)
            block_m, warps, stages = MANY if triton.cdiv(m, MANY[0]) * tiles >= 3 * processors else FEW
            _gather[(triton.cdiv(m, GATHERED[0]), triton.cdiv(width, GATHERED[1]))](
                x, rows, x.stride(), m, patches, x.shape[3] // patch, elements, width, patch, *GATHERED, overlap
            )
            _multiply[(tiles, triton.cdiv(m, block_m))](
                TensorDescriptor.from_tensor(rows, [block_m, BLOCK_K]), described, held["bias"], tokens, given,
                tokens.stride(0), given.stride(0), m, patches, outputs, elements, block_m, BLOCK_N, BLOCK_K,
                bias is not None, overlap, num_warps=warps, num_stages=stages, launch_pdl=overlap,
            )  # fmt: skip
            settle(y, given)
        return y

    def refresh(new: Mapping[str, Any]) -> None:
        keep({"matrix": new["weight"].flatten(1), "bias": new.get("bias")})

    return Prepared(run, refresh=refresh)
