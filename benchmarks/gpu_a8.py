"""A norm and the block behind it with inputs of 8 bits, at π0.5's prefix's sizes: µs in a CUDA graph, cold weights.

    python benchmarks/gpu_a8.py --out benchmarks/results/rows_a8.json [--only passes block projection]

``gpu_table.py`` says how they are timed, and what the floor is. ``error`` is the relative error in the Frobenius norm
against float32, for the weights and inputs before they were quantized. Each call beside the chain that it replaces.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from gpu_fp8_blocks import gated_want
from gpu_fp8_products import relative
from gpu_parts import resources
from gpu_table import (
    BF16_RATE,
    Table,
    bind,
    floor_of,
    kernels,
    normal,
    prepared,
    sections_parser,
    timed_section,
    weight,
)
from phyai.facts import Facts
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

M, K, WIDTH = 968, 2048, 16384
HEADS, KV_HEADS, HEAD_DIM, PAGE = 8, 1, 256, 1018
GEMMA = {"attrs.eps": 1e-6, "attrs.offset": 1}
#: Scales of the weight and of the input, and whether they are computed.
TOKEN, TENSOR, STATIC = ("channel", "token", True), ("tensor", "tensor", True), ("tensor", "tensor", False)
SCALES = ((TOKEN, "token"), (STATIC, "static"), (TENSOR, "tensor"))
VARIANTS = (("fp8_a8_fast", "fp8_e4m3"), ("fp8_a8", "fp8_e4m3"), ("int8_a8", "int8"))
NORMED = "rms_norm_add_"


def quantized(w: torch.Tensor, element: str, how: tuple[str, str, bool], input_scale: float) -> QuantizedWeight:
    granularity, activation, dynamic = how
    scheme = QuantScheme(TensorQuant(element, granularity), TensorQuant(element, activation, dynamic=dynamic))
    dtype, top = (torch.int8, 127) if element == "int8" else (torch.float8_e4m3fn, 448)
    amax = w.float().abs().amax(*((1, True) if granularity == "channel" else ()))
    scale = (amax / top).reshape(-1, 1)
    codes = w.float() / scale
    codes = (codes.round() if element == "int8" else codes).to(dtype)
    given = None if dynamic else torch.tensor(input_scale / top, device=w.device)
    return QuantizedWeight(scheme, tuple(w.shape), codes=codes, scale=scale, input_scale=given)


def facts_of(op: str, weights: Mapping[str, Any], heads: Mapping[str, str], **more: Any) -> dict[str, Any]:
    quant = {f"{head}{n}": v for name, head in heads.items() for n, v in weights[name].facts().items()}
    return {"op": op, "device.arch": "sm90", "device.sm_count": 132, **GEMMA, **more, **quant}


def norm_run() -> tuple[Callable[..., torch.Tensor], torch.Tensor]:
    w = normal(K) * 0.1
    return prepared("cuda.rms_norm_add", {**GEMMA, "shape.D": K}, {"weight": w}).run, w


def normed(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = x.float() + residual.float()
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * (1 + w.float())


# The pass alone


def passes(table: Table) -> None:
    what = f"norm and codes {M} x {K}"
    table.time("rms_norm_add", "cuda.rms_norm_add", floor_of(8 * M * K), lambda: bind(norm_run()[0], *pair()))
    for element in ("fp8_e4m3", "int8"):
        for how, words in SCALES[: 1 if element == "int8" else 3]:
            held = quantized(weight(64, K), element, how, 4.0)
            table.time(what, f"chain {element} {words}", floor_of(7 * M * K), lambda: apart(held))
            table.time(what, f"fused {element} {words}", floor_of(7 * M * K), lambda: together(held))
    for element in ("fp8_e4m3", "int8"):
        for how, words in SCALES[: 1 if element == "int8" else 3]:
            held = quantized(weight(16, WIDTH), element, how, 4.0)
            table.time(f"gated activation and codes {M} x {WIDTH}", f"{element} {words}", floor_of(5 * M * WIDTH),
                       lambda: activated(held))  # fmt: skip


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return normal(M, K), normal(M, K)


def product(held: QuantizedWeight) -> Any:
    from phyai_backend_cuda.quantized.product import product_of

    return product_of(held, None, Facts(held.facts()).under("quant"), resources(), fast=True, options={})


def apart(held: QuantizedWeight) -> Callable[[], Any]:
    (norm, _), (x, residual), codes = norm_run(), pair(), product(held)
    return lambda: codes.quantized(norm(x, residual))


def together(held: QuantizedWeight) -> Callable[[], Any]:
    w, (x, residual), codes = normal(K) * 0.1, pair(), product(held)
    return lambda: codes.normed(x, residual, w, eps=1e-6, offset=1)


def activated(held: QuantizedWeight) -> Callable[[], Any]:
    hidden, codes = normal(M, 2 * WIDTH), product(held)
    return lambda: codes.activated(hidden, "gelu_tanh", gated=True)


# Feed-forward blocks

Made = tuple[Callable[[], torch.Tensor], tuple[torch.Tensor, ...]]


def block(table: Table) -> None:
    flops, what = 6 * M * K * WIDTH, "norm and feed-forward block"
    wide, narrow = floor_of(6 * K * WIDTH + 10 * M * K, flops, BF16_RATE), floor_of(3 * K * WIDTH + 10 * M * K, flops)

    def timed(who: str, make: Callable[[], Made], floor: float) -> None:
        table.time(what, who, floor, lambda: make()[0], lambda: block_error(make))

    timed("bf16: cuda.rms_norm_add, cuBLAS, cuda.gated_activation, cuBLAS", block_bf16, wide)
    for variant, element in (*VARIANTS, ("fp8_a8_fused", "fp8_e4m3")):
        for joined in (False, True):
            timed(named("gated_mlp", variant, joined), lambda: block_a8(variant, element, TOKEN, joined), narrow)
    for how, words in SCALES[1:]:
        who = f"{named('gated_mlp', 'fp8_a8_fast', True)} {words}"
        timed(who, lambda: block_a8("fp8_a8_fast", "fp8_e4m3", how, True), narrow)


def named(op: str, variant: str, joined: bool) -> str:
    return f"cuda.{NORMED}{op}.{variant}" if joined else f"cuda.{op}.{variant} behind cuda.rms_norm_add"


def block_tensors() -> tuple[torch.Tensor, ...]:
    return (*pair(), normal(K) * 0.1, weight(2 * WIDTH, K), weight(K, WIDTH))


def block_bf16() -> Made:
    x, residual, w, gate_up, down = given = block_tensors()
    norm = prepared("cuda.rms_norm_add", {**GEMMA, "shape.D": K}, {"weight": w}).run
    act = prepared("cuda.gated_activation", {"shape.I": WIDTH, "attrs.activation": "gelu_tanh"}, {}).run
    linear = torch.nn.functional.linear
    return lambda: linear(act(linear(norm(x, residual), gate_up)), down), given


def block_a8(variant: str, element: str, how: tuple[str, str, bool], joined: bool) -> Made:
    x, residual, w, gate_up, down = given = block_tensors()
    weights = {"gate_up": quantized(gate_up, element, how, 5.0), "down": quantized(down, element, how, 12.0)}
    if joined:
        heads = {name: f"parts.block.parts.{name}." for name in weights}
        facts = facts_of(f"{NORMED}gated_mlp", weights, heads, **{"attrs.activation": "gelu_tanh"})
        run = prepared(f"cuda.{NORMED}gated_mlp.{variant}", facts, {**weights, "norm_weight": w}).run
        return bind(run, x, residual), given
    heads = {name: f"parts.{name}." for name in weights}
    run = prepared(f"cuda.gated_mlp.{variant}",
                   facts_of("gated_mlp", weights, heads, **{"attrs.activation": "gelu_tanh"}), weights).run  # fmt: skip
    norm = prepared("cuda.rms_norm_add", {**GEMMA, "shape.D": K}, {"weight": w}).run
    return lambda: run(norm(x, residual)), given


def block_error(make: Callable[[], Made]) -> float:
    call, (x, residual, w, gate_up, down) = make()
    want = gated_want(normed(x, residual, w), gate_up, down)
    return relative(call(), want)


# Projections


def projection(table: Table) -> None:
    n, what = (HEADS + 2 * KV_HEADS) * HEAD_DIM, "norm, qkv, rope and cache"
    wide = floor_of(2 * K * n + M * (8 * K + 2 * n), 2 * M * K * n, BF16_RATE)
    narrow = floor_of(K * n + M * (8 * K + 2 * n), 2 * M * K * n)

    def timed(who: str, make: Callable[[], Made], floor: float) -> None:
        table.time(what, who, floor, lambda: make()[0], lambda: projection_error(make))

    op = "qkv_rope_kv_write"
    timed(f"cuda.{op} behind cuda.rms_norm_add, bf16", projection_bf16, wide)
    for variant, element in VARIANTS:
        for joined in (False, True):
            timed(named(op, variant, joined), lambda: projection_a8(variant, element, TOKEN, joined, False), narrow)
        if element == "fp8_e4m3":
            timed(f"{named(op, variant, True)}, scaled by the product",
                  lambda: projection_a8(variant, element, TOKEN, True, True), narrow)  # fmt: skip
    timed(f"{named(op, 'fp8_a8_fast', True)} static",
          lambda: projection_a8("fp8_a8_fast", "fp8_e4m3", STATIC, True, False), narrow)  # fmt: skip


def projection_tensors() -> tuple[torch.Tensor, ...]:
    angles = torch.rand(1024, HEAD_DIM // 2, device="cuda") * 6
    caches = [torch.zeros(1, PAGE, KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in "kv"]
    tokens = torch.arange(M, device="cuda")
    w = weight((HEADS + 2 * KV_HEADS) * HEAD_DIM, K)
    return (*pair(), normal(K) * 0.1, w, torch.cat([angles.cos(), angles.sin()], dim=1), tokens, *caches)


def shapes() -> dict[str, Any]:
    heads = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    return {**{f"attrs.{n}": size for n, size in heads.items()}, "shape.rotary_dim": HEAD_DIM}


def projection_bf16() -> Made:
    x, residual, w, matrix, cos_sin, tokens, *caches = given = projection_tensors()
    norm = prepared("cuda.rms_norm_add", {**GEMMA, "shape.D": K}, {"weight": w}).run
    run = prepared("cuda.qkv_rope_kv_write", shapes(), {"weight": matrix, "cos_sin": cos_sin}).run
    return lambda: run(norm(x, residual), tokens, *caches, tokens), given


def projection_a8(variant: str, element: str, how: tuple[str, str, bool], joined: bool, scaled: bool) -> Made:
    x, residual, w, matrix, cos_sin, tokens, *caches = given = projection_tensors()
    weights = {"weight": quantized(matrix, element, how, 5.0), "cos_sin": cos_sin}
    if joined:
        facts = facts_of(f"{NORMED}qkv_rope_kv_write", weights, {"weight": "parts.block.parts.qkv."}, **shapes())
        # a bias keeps the scales in the product
        more = {"norm_weight": w, **({"bias": normal(len(matrix)) * 0} if scaled else {})}
        run = prepared(f"cuda.{NORMED}qkv_rope_kv_write.{variant}", facts, {**weights, **more}).run
        return bind(run, x, residual, tokens, *caches, tokens), given
    facts = facts_of("qkv_rope_kv_write", weights, {"weight": "parts.qkv."}, **shapes())
    run = prepared(f"cuda.qkv_rope_kv_write.{variant}", facts, weights).run
    norm = prepared("cuda.rms_norm_add", {**GEMMA, "shape.D": K}, {"weight": w}).run
    return lambda: run(norm(x, residual), tokens, *caches, tokens), given


def projection_error(make: Callable[[], Made]) -> float:
    """Of the queries and of what is in the caches, together."""
    call, (x, residual, w, matrix, cos_sin, _, *caches) = make()
    qkv = (normed(x, residual, w) @ matrix.float().T).view(M, -1, HEAD_DIM)
    cos, sin = cos_sin[:M, None].chunk(2, dim=-1)
    a, b = qkv[:, : HEADS + KV_HEADS].chunk(2, dim=-1)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    q = call()
    got = torch.cat([q, caches[0][0, :M], caches[1][0, :M]], dim=1)
    return relative(got, torch.cat([turned, qkv[:, HEADS + KV_HEADS :]], dim=1))


SECTIONS: Mapping[str, Callable[[Table], None]] = {"passes": passes, "block": block, "projection": projection}


def main() -> None:
    given = sections_parser(__doc__, SECTIONS).parse_args()
    table = Table(given.out, time.monotonic() + given.seconds)
    torch.backends.cuda.matmul.allow_tf32 = False
    kernels()
    for name in given.only:
        timed_section(table, name, SECTIONS[name])


if __name__ == "__main__":
    main()
