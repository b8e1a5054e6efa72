"""Feed-forward blocks of π0.5 in FP8, and the launch that activates what it multiplies: sections of ``gpu_fp8.py``."""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gpu_fp8_products import SCHEME, STATIC, codes_of, quantized, relative
from gpu_table import BF16_RATE, Table, bind, floor_of, normal, prepared, weight
from phyai.quant.scheme import QuantScheme
from phyai.quant.weight import QuantizedWeight

F = torch.nn.functional
FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu, "gelu": F.gelu,
}  # fmt: skip
Made = tuple[Callable[[], torch.Tensor], tuple[torch.Tensor, ...]]


def blocks(table: Table) -> None:
    m, k, width = 968, 2048, 16384
    flops, what = 6 * m * k * width, "prefix block"
    wide = floor_of(6 * k * width + 4 * m * k, flops, BF16_RATE)
    table.time(what, "bf16: cuBLAS, cuda.gated_activation, cuBLAS", wide, lambda: gated_bf16(m, k, width)[0],
               lambda: gated_error(gated_bf16, m, k, width))  # fmt: skip
    narrow = floor_of(3 * k * width + 4 * m * k, flops)
    for id in ("cuda.gated_mlp.fp8_a8", "cuda.gated_mlp.fp8_a8_fast"):
        for scheme, words in ((SCHEME, ""), (STATIC, " static")):
            make = gated_row(id, scheme)
            table.time(what, id + words, narrow, lambda: make(m, k, width)[0], lambda: gated_error(make, m, k, width))
    m, k, width = 768, 1152, 4304
    flops, what = 4 * m * k * width, "vision block"
    wide, narrow = floor_of(4 * k * width + 4 * m * k, flops, BF16_RATE), floor_of(2 * k * width + 4 * m * k, flops)
    for who, make in (("bf16: cuBLAS, gelu, cuBLAS", plain_bf16), ("bf16: gelu in cuBLAS's epilogue", epilogue_bf16),
                      ("cuda.mlp.fp8_a8", plain_row("cuda.mlp.fp8_a8")),
                      ("cuda.mlp.fp8_a8_fast", plain_row("cuda.mlp.fp8_a8_fast"))):  # fmt: skip
        table.time(what, who, narrow if "fp8" in who else wide, lambda: make(m, k, width)[0],
                   lambda: plain_error(make, m, k, width))  # fmt: skip


def tensors(m: int, k: int, width: int, gated: bool) -> tuple[torch.Tensor, ...]:
    return normal(m, k), weight(width * (1 + gated), k), weight(k, width)


def gated_bf16(m: int, k: int, width: int) -> Made:
    x, gate_up, down = given = tensors(m, k, width, True)
    act = prepared("cuda.gated_activation", {"shape.I": width, "attrs.activation": "gelu_tanh"}, {}).run
    return lambda: F.linear(act(F.linear(x, gate_up)), down), given


def mlp_facts(op: str, weights: Mapping[str, QuantizedWeight]) -> dict[str, Any]:
    parts = {f"parts.{name}.{fact}": value for name, w in weights.items() for fact, value in w.facts().items()}
    return {"op": op, "dtype.x": "bf16", "dtype.y": "bf16", "attrs.activation": "gelu_tanh", "device.sm_count": 132,
            **parts}  # fmt: skip


def gated_row(id: str, scheme: QuantScheme = SCHEME) -> Callable[[int, int, int], Made]:
    def make(m: int, k: int, width: int) -> Made:
        x, gate_up, down = given = tensors(m, k, width, True)
        weights = {"gate_up": quantized(gate_up, scheme, 0.011), "down": quantized(down, scheme, 0.03)}
        return bind(prepared(id, mlp_facts("gated_mlp", weights), weights).run, x), given

    return make


def plain_row(id: str) -> Callable[[int, int, int], Made]:
    def make(m: int, k: int, width: int) -> Made:
        x, fc1, fc2 = given = tensors(m, k, width, False)
        weights = {"fc1": quantized(fc1), "fc2": quantized(fc2)}
        facts, biases = mlp_facts("mlp", weights), {"fc1_bias": normal(width) * 0, "fc2_bias": normal(k) * 0}
        return bind(prepared(id, facts, {**weights, **biases}).run, x), given

    return make


def plain_bf16(m: int, k: int, width: int) -> Made:
    x, fc1, fc2 = given = tensors(m, k, width, False)
    b1, b2 = normal(width) * 0, normal(k) * 0
    return lambda: F.linear(F.gelu(F.linear(x, fc1, b1), approximate="tanh"), fc2, b2), given


def epilogue_bf16(m: int, k: int, width: int) -> Made:
    x, fc1, fc2 = given = tensors(m, k, width, False)
    b1, b2 = normal(width) * 0, normal(k) * 0
    return lambda: F.linear(torch._addmm_activation(b1, x, fc1.T, use_gelu=True), fc2, b2), given


def gated_want(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x.float() @ gate_up.float().T).chunk(2, -1)
    return (F.gelu(gate, approximate="tanh") * up) @ down.float().T


def gated_error(make: Callable[[int, int, int], Made], *sizes: int) -> float:
    call, given = make(*sizes)
    return relative(call(), gated_want(*given))


def plain_error(make: Callable[[int, int, int], Made], *sizes: int) -> float:
    call, (x, fc1, fc2) = make(*sizes)
    return relative(call(), F.gelu(x.float() @ fc1.float().T, approximate="tanh") @ fc2.float().T)


# The first product and its activation in one launch


def gated(table: Table) -> None:
    """First right, at odd sizes too, then how fast."""
    for m, width, k in ((256, 128, 128), (968, 1024, 2048), (300, 256, 160), (1, 128, 64), (1500, 17 * 128, 1152)):
        for act in FUNCTIONS:
            row: dict[str, Any] = {"call": f"fp8 {act} M={m} I={width} K={k}", "kernel": "gated.cu"}
            try:
                row["error"], row["same_twice"] = check(m, width, k, act)
            except Exception as problem:
                row["problem"] = f"{type(problem).__name__}: {problem}"[:300]
                table.add(row)
                return  # a device that failed answers no more
            table.add(row)
    m, k, width = 968, 2048, 16384
    table.time("prefix gate_up and activation", "gated.cu fp8",
               floor_of(2 * k * width + m * k + 2 * m * width, 4 * m * k * width),
               lambda: one_launch(m, width, k, "gelu_tanh")[0])  # fmt: skip
    for scheme, words in ((SCHEME, ""), (STATIC, " static")):
        make = gated_row("cuda.gated_mlp.fp8_a8_fused", scheme)
        table.time("prefix block", f"cuda.gated_mlp.fp8_a8_fused{words}",
                   floor_of(3 * k * width + 4 * m * k, 6 * m * k * width), lambda: make(m, k, width)[0],
                   lambda: gated_error(make, m, k, width))  # fmt: skip


def one_launch(m: int, width: int, k: int, act: str) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """The call, and what float32 gives."""
    from phyai_backend_cuda.gated.product import GatedProduct

    (a, rows), (b, columns) = codes_of(normal(m, k), 1), codes_of(weight(2 * width, k), 1)
    h = torch.empty(m, width, dtype=torch.bfloat16, device="cuda")
    product, scales = GatedProduct(b, columns.flatten(), act, 132), rows.flatten()

    def call() -> torch.Tensor:
        product(a, scales, h)
        return h

    def want() -> torch.Tensor:
        gate, up = ((a.float() * rows) @ (b.float() * columns).T).chunk(2, -1)
        return FUNCTIONS[act](gate) * up

    return call, want


def check(m: int, width: int, k: int, act: str) -> tuple[float, bool]:
    call, want = one_launch(m, width, k, act)
    first = call().clone()
    torch.cuda.synchronize()
    return float(f"{relative(first, want()):.3g}"), bool(torch.equal(first, call()))
