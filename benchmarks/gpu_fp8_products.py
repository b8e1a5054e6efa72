"""FP8 products of π0.5's prefix and vision, and the passes between them: sections of ``gpu_fp8.py``."""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gpu_parts import resources
from gpu_table import BF16_RATE, Table, bind, floor_of, normal, prepared, weight
from phyai.facts import Facts
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

FP8, BF16, TOP = torch.float8_e4m3fn, torch.bfloat16, 448.0
F = torch.nn.functional
#: What is multiplied: rows, outputs, inputs, and whether there is a bias.
SHAPES: Mapping[str, tuple[int, int, int, bool]] = {
    "prefix qkv": (968, 2560, 2048, False), "prefix o": (968, 2048, 2048, False),
    "prefix gate_up": (968, 32768, 2048, False), "prefix down": (968, 2048, 16384, False),
    "vision qkv": (768, 3456, 1152, True), "vision o": (768, 1152, 1152, True),
    "vision up": (768, 4304, 1152, True), "vision down": (768, 1152, 4304, True),
    "expert qkv": (50, 2560, 1024, False), "expert o": (50, 1024, 2048, False),
    "expert gate_up": (50, 8192, 1024, False), "expert down": (50, 1024, 4096, False),
}  # fmt: skip
SCHEME = QuantScheme(TensorQuant("fp8_e4m3", "channel"), TensorQuant("fp8_e4m3", "token", dynamic=True))
STATIC = QuantScheme(TensorQuant("fp8_e4m3", "channel"), TensorQuant("fp8_e4m3", "tensor"))


def codes_of(x: torch.Tensor, dim: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 codes and scales: of rows (dim 1), or of the whole tensor (None)."""
    amax = x.float().abs().amax() if dim is None else x.float().abs().amax(dim, keepdim=True)
    scale = amax / TOP
    return (x.float() / scale).to(FP8), scale


def quantized(w: torch.Tensor, scheme: QuantScheme = SCHEME, input_scale: float = 0.02) -> QuantizedWeight:
    codes, scale = codes_of(w, 1)
    given = torch.tensor(input_scale, device="cuda") if scheme is STATIC else None
    return QuantizedWeight(scheme, tuple(w.shape), codes=codes, scale=scale, input_scale=given)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def gemms(table: Table) -> None:
    for what, (m, n, k, biased) in SHAPES.items():
        flops = 2 * m * n * k
        narrow, wide = floor_of(n * k + m * (k + 2 * n), flops), floor_of(2 * (n * k + m * (k + n)), flops, BF16_RATE)
        bias = normal(n) if biased else None
        table.time(what, "bf16 cuBLAS", wide, lambda: linear(normal(m, k), weight(n, k), bias))
        for rows in (True, False):
            for fast in (False, True):
                who = f"_scaled_mm {'rows' if rows else 'tensor'}{' fast' * fast}"
                table.time(what, who, narrow, lambda: scaled(m, n, k, bias, rows, fast)[0],
                           lambda: scaled_error(m, n, k, bias, rows, fast))  # fmt: skip
        dtypes = {"dtype.x": "bf16", "dtype.y": "bf16"} | ({"dtype.bias": "bf16"} if biased else {})
        for id in ("torch.gemm.fp8_channel", "cuda.gemm.fp8_a8", "cuda.gemm.fp8_a8_fast"):

            def fresh(id: str = id) -> Callable[[], Any]:
                held = quantized(weight(n, k))
                run = prepared(id, {**dtypes, **held.facts()}, {"weight": held, "bias": bias}).run
                return bind(run, normal(m, k))

            table.time(what, id, narrow, fresh)


def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> Callable[[], Any]:
    return lambda: F.linear(x, w, bias)


def scaled(
    m: int, n: int, k: int, bias: torch.Tensor | None, rows: bool, fast: bool
) -> tuple[Callable[[], torch.Tensor], tuple[torch.Tensor, ...]]:
    """A scaled product, and its codes and scales."""
    a, sa = codes_of(normal(m, k), 1 if rows else None)
    b, sb = codes_of(weight(n, k), 1 if rows else None)
    column = sb.T.contiguous() if rows else sb
    return (
        lambda: torch._scaled_mm(a, b.T, sa, column, bias=bias, out_dtype=BF16, use_fast_accum=fast), (a, sa, b, sb)
    )  # fmt: skip


def scaled_error(m: int, n: int, k: int, bias: torch.Tensor | None, rows: bool, fast: bool) -> float:
    call, (a, sa, b, sb) = scaled(m, n, k, bias, rows, fast)
    want = (a.float() * sa) @ (b.float() * sb).T
    return relative(call(), want if bias is None else want + bias.float())


def shapes(table: Table) -> None:
    """BF16 products that fill the chip badly, asked for in other ways: without the bias, and with K in parts."""
    for what in ("vision down", "vision o", "prefix qkv", "prefix o"):
        m, n, k, biased = SHAPES[what]
        floor, bias = floor_of(2 * (n * k + m * (k + n)), 2 * m * n * k, BF16_RATE), normal(n) if biased else None
        table.time(what, "bf16 linear", floor, lambda: linear(normal(m, k), weight(n, k), bias))
        table.time(what, "bf16 mm, no bias", floor, lambda: linear(normal(m, k), weight(n, k), None))
        table.time(what, "bf16 mm, weight [K, N]", floor, lambda: bind(torch.mm, normal(m, k), weight(k, n)))
        for parts in (2, 4):
            if k % (8 * parts) == 0:
                table.time(what, f"bf16 bmm of K in {parts}, not added up", floor, lambda: in_parts(m, n, k, parts))


def in_parts(m: int, n: int, k: int, parts: int) -> Callable[[], Any]:
    x, w = normal(m, k).view(m, parts, -1).transpose(0, 1), weight(n, k).view(n, parts, -1).permute(1, 2, 0)
    return lambda: torch.bmm(x, w)


def patches(table: Table) -> None:
    """The patch embedding of three images, to rows with positions added."""
    facts = {"attrs.stride": 14, "attrs.patches": True}
    for id in ("torch.conv2d", "torch.conv2d.patches"):

        def fresh(id: str = id) -> Callable[[], Any]:
            run = prepared(id, facts, {"weight": normal(1152, 3, 14, 14), "bias": normal(1152)}).run
            x, position = normal(3, 3, 224, 224), normal(256, 1152)
            return lambda: (run(x).flatten(2).transpose(1, 2) + position).contiguous()

        table.time("patch embedding 3 images", id, floor_of(2 * (3 * 3 * 224 * 224 + 768 * 1152)), fresh)


# What lies between products


def passes(table: Table) -> None:
    token = {"attrs.format": "fp8_e4m3", "attrs.granularity": "token"}
    tensor = {**token, "attrs.granularity": "tensor"}
    for m, k in ((968, 2048), (968, 16384), (768, 1152), (768, 4304), (50, 1024)):
        floor, what = floor_of(3 * m * k), f"quantize {m} x {k}"
        table.time(what, "cuda.quantize_activation token", floor,
                   lambda: bind(prepared("cuda.quantize_activation", token, {}).run, normal(m, k)))  # fmt: skip
        table.time(what, "cuda.quantize_activation tensor", floor,
                   lambda: bind(prepared("cuda.quantize_activation", tensor, {}).run, normal(m, k)))  # fmt: skip
        table.time(what, "cuda.quantize_activation static", floor,
                   lambda: bind(prepared("cuda.quantize_activation", tensor, {}).run, normal(m, k),
                                torch.tensor([0.02], device="cuda")))  # fmt: skip
        for words, more in (
            ("int8 token", {"attrs.format": "int8"}), ("int8 tensor", {**tensor, "attrs.format": "int8"}),
            ("groups of 128", {"attrs.granularity": "group", "attrs.group_size": 128}),
        ):  # fmt: skip
            if not more.get("attrs.group_size") or k % 128 == 0:
                table.time(what, f"cuda.quantize_activation {words}", floor,
                           lambda: bind(prepared("cuda.quantize_activation", {**token, **more}, {}).run,
                                        normal(m, k)))  # fmt: skip
    for m, width, gated in ((968, 16384, True), (768, 4304, False)):
        columns = width * (1 + gated)
        what = f"{'gated ' * gated}activation {m} x {width}"
        for who, static in (("quantized", False), ("static", True)):
            table.time(what, f"cuda activate_quantize {who}", floor_of(m * (2 * columns + width)),
                       lambda: activation(m, columns, width, gated, static))  # fmt: skip
        if gated:
            facts = {"shape.I": width, "attrs.activation": "gelu_tanh"}
            table.time(what, "cuda.gated_activation bf16", floor_of(2 * m * (columns + width)),
                       lambda: bind(prepared("cuda.gated_activation", facts, {}).run, normal(m, columns)))  # fmt: skip
        else:
            table.time(what, "torch gelu bf16", floor_of(4 * m * width),
                       lambda: bind(lambda x: F.gelu(x, approximate="tanh"), normal(m, width)))  # fmt: skip
    table.time("rms_norm_add 968 x 2048", "cuda.rms_norm_add", floor_of(8 * 968 * 2048),
               lambda: bind(prepared("cuda.rms_norm_add", {"shape.D": 2048}, {"weight": normal(2048)}).run,
                            normal(968, 2048), normal(968, 2048)))  # fmt: skip


def activation(m: int, columns: int, width: int, gated: bool, static: bool) -> Callable[[], Any]:
    from phyai_backend_cuda.quantized.activated import activate_quantize

    x, codes = normal(m, columns), torch.empty(m, width, dtype=FP8, device="cuda")
    scales = torch.empty(m, device="cuda")
    given = torch.tensor([0.02], device="cuda") if static else None
    return lambda: activate_quantize(x, codes, scales, "gelu_tanh", gated=gated, given=given)


# Other libraries


def flashinfer(table: Table) -> None:
    import flashinfer.gemm as library

    one = torch.ones(1, device="cuda")
    for what, (m, n, k, biased) in SHAPES.items():
        if not biased:
            floor = floor_of(n * k + m * (k + 2 * n), 2 * m * n * k)

            def fresh() -> Callable[[], Any]:
                a, b = codes_of(normal(m, k), None)[0], codes_of(weight(n, k), None)[0]
                return lambda: library.bmm_fp8(a[None], b.T[None], one, one, BF16, backend="cublas")

            table.time(what, "flashinfer.bmm_fp8 cublas, one scale", floor, fresh)


def humming(table: Table) -> None:
    from phyai_backend_humming.layout import pack
    from phyai_backend_humming.rows import KERNELS

    row = next(k for k in KERNELS if k.id == "humming.gemm.fp8_a8")
    scheme = QuantScheme(TensorQuant("fp8_e4m3", "channel", scale_dtype="bf16"), SCHEME.input)

    for what, (m, n, k, biased) in SHAPES.items():
        if not biased:
            floor = floor_of(n * k + m * (k + 2 * n), 2 * m * n * k)
            shapes = {"shape.N": n, "shape.K": k, "device.arch": "sm90", "device.sm_count": 132}

            def fresh() -> Callable[[], Any]:
                codes, scale = codes_of(weight(n, k), 1)
                held = pack(QuantizedWeight(scheme, (n, k), codes=codes, scale=scale.to(BF16)))
                facts = Facts({"dtype.x": "bf16", "dtype.y": "bf16", **shapes, **held.facts()})
                return bind(row.load()(facts, {"weight": held}, {"rows": [m]}, resources()).run, normal(m, k))

            table.time(what, "humming.gemm.fp8_a8", floor, fresh, calls=12)
