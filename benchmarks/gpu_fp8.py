"""FP8 products of π0.5's prefix and vision: µs in a CUDA graph, cold weights, beside BF16 and the floor.

    python benchmarks/gpu_fp8.py --out benchmarks/results/rows_fp8.json [--only gated blocks]

Timed as ``gpu_rows.py`` does: one call among 40 in one graph, each with its own inputs and weights; the median of 20
replays. ``floor_us`` is the larger of bytes at 4.25 TB/s and, for products, FLOPs at what 8192³ reaches (793 TFLOP/s in
BF16, 1,492 in FP8). ``error`` is the relative error in the Frobenius norm against float32: of a product for the very
same codes, of a block for the weights and inputs before they were quantized.

Sections that compile, or that a wrong kernel could take down, run in processes of their own with a time-box; what fails
is recorded, and the rest goes on.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gpu_parts import Resources
from gpu_rows import CALLS, RESOURCES, microseconds, normal
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

BANDWIDTH, BF16_RATE, FP8_RATE = 4.25e12, 793e12, 1492e12
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
#: Sections with processes of their own, and seconds for each.
APART = {"gated": 45.0, "humming": 30.0, "flashinfer": 30.0}
SECTIONS = ("gated", "blocks", "gemms", "shapes", "patches", "passes", "humming", "flashinfer")


class Table:
    """Collects figures and writes them as they come; measures nothing any more after ``deadline``."""

    def __init__(self, out: Path, deadline: float) -> None:
        self.out, self.deadline = out, deadline
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        report = {"device": device, "torch": torch.__version__, "rows": self.rows}
        self.out.write_text(json.dumps(report, indent=1) + "\n")

    def time(
        self, what: str, who: str, floor: float, make: Callable[[], Callable[[], Any]],
        error: Callable[[], float] | None = None, calls: int = CALLS,
    ) -> None:  # fmt: skip
        """``make`` gives a fresh call; ``error`` says how wrong one is. ``floor`` is in seconds."""
        row: dict[str, Any] = {"call": what, "kernel": who, "floor_us": round(floor * 1e6, 2)}
        if time.monotonic() > self.deadline:
            self.add(row | {"problem": "not measured: the time was up"})
            return
        try:
            if error is not None:
                row["error"] = float(f"{error():.3g}")
            row["us"] = round(microseconds([make() for _ in range(calls)]), 2)
        except Exception as problem:
            row["problem"] = f"{type(problem).__name__}: {problem}"[:300]
        torch.cuda.empty_cache()
        self.add(row)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def floor_of(nbytes: float, flops: float = 0.0, rate: float = FP8_RATE) -> float:
    return max(nbytes / BANDWIDTH, flops / rate)


def codes_of(x: torch.Tensor, dim: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 codes and scales: of rows (dim 1), or of the whole tensor (None)."""
    amax = x.float().abs().amax() if dim is None else x.float().abs().amax(dim, keepdim=True)
    scale = amax / TOP
    return (x.float() / scale).to(FP8), scale


def kernel(id: str) -> Kernel:
    from phyai_backend_cuda.records import KERNELS
    from phyai_backend_reference.rows.torch import KERNELS as TORCH

    return next(k for k in (*KERNELS, *TORCH) if k.id == id)


def prepared(id: str, facts: Mapping[str, Any], weights: Mapping[str, Any]) -> Callable[..., Any]:
    return kernel(id).load()(Facts(facts), weights, {}, RESOURCES).run


SCHEME = QuantScheme(TensorQuant("fp8_e4m3", "channel"), TensorQuant("fp8_e4m3", "token", dynamic=True))
STATIC = QuantScheme(TensorQuant("fp8_e4m3", "channel"), TensorQuant("fp8_e4m3", "tensor"))


def quantized(w: torch.Tensor, scheme: QuantScheme = SCHEME, input_scale: float = 0.02) -> QuantizedWeight:
    codes, scale = codes_of(w, 1)
    given = torch.tensor(input_scale, device="cuda") if scheme is STATIC else None
    return QuantizedWeight(scheme, tuple(w.shape), codes=codes, scale=scale, input_scale=given)


# Products


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
                run = prepared(id, {**dtypes, **held.facts()}, {"weight": held, "bias": bias})
                return bind(run, normal(m, k))

            table.time(what, id, narrow, fresh)


def weight(n: int, k: int) -> torch.Tensor:
    return normal(n, k) * k**-0.5


def bind(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


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
            run = prepared(id, facts, {"weight": normal(1152, 3, 14, 14), "bias": normal(1152)})
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
                   lambda: bind(prepared("cuda.quantize_activation", token, {}), normal(m, k)))  # fmt: skip
        table.time(what, "cuda.quantize_activation tensor", floor,
                   lambda: bind(prepared("cuda.quantize_activation", tensor, {}), normal(m, k)))  # fmt: skip
        table.time(what, "cuda.quantize_activation static", floor,
                   lambda: bind(prepared("cuda.quantize_activation", tensor, {}), normal(m, k),
                                torch.tensor([0.02], device="cuda")))  # fmt: skip
    for m, width, gated in ((968, 16384, True), (768, 4304, False)):
        columns = width * (1 + gated)
        what = f"{'gated ' * gated}activation {m} x {width}"
        for who, static in (("quantized", False), ("static", True)):
            table.time(what, f"cuda activate_quantize {who}", floor_of(m * (2 * columns + width)),
                       lambda: activation(m, columns, width, gated, static))  # fmt: skip
        if gated:
            facts = {"shape.I": width, "attrs.activation": "gelu_tanh"}
            table.time(what, "cuda.gated_activation bf16", floor_of(2 * m * (columns + width)),
                       lambda: bind(prepared("cuda.gated_activation", facts, {}), normal(m, columns)))  # fmt: skip
        else:
            table.time(what, "torch gelu bf16", floor_of(4 * m * width),
                       lambda: bind(lambda x: F.gelu(x, approximate="tanh"), normal(m, width)))  # fmt: skip
    table.time("rms_norm_add 968 x 2048", "cuda.rms_norm_add", floor_of(8 * 968 * 2048),
               lambda: bind(prepared("cuda.rms_norm_add", {"shape.D": 2048}, {"weight": normal(2048)}),
                            normal(968, 2048), normal(968, 2048)))  # fmt: skip


def activation(m: int, columns: int, width: int, gated: bool, static: bool) -> Callable[[], Any]:
    from phyai_backend_cuda.quantized.kernels import activate_quantize

    x, codes = normal(m, columns), torch.empty(m, width, dtype=FP8, device="cuda")
    scales = torch.empty(m, device="cuda")
    given = torch.tensor([0.02], device="cuda") if static else None
    return lambda: activate_quantize(x, codes, scales, "gelu_tanh", gated=gated, given=given)


# Feed-forward blocks


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


Made = tuple[Callable[[], torch.Tensor], tuple[torch.Tensor, ...]]


def tensors(m: int, k: int, width: int, gated: bool) -> tuple[torch.Tensor, ...]:
    return normal(m, k), weight(width * (1 + gated), k), weight(k, width)


def gated_bf16(m: int, k: int, width: int) -> Made:
    x, gate_up, down = given = tensors(m, k, width, True)
    act = prepared("cuda.gated_activation", {"shape.I": width, "attrs.activation": "gelu_tanh"}, {})
    return lambda: F.linear(act(F.linear(x, gate_up)), down), given


def mlp_facts(op: str, weights: Mapping[str, QuantizedWeight]) -> dict[str, Any]:
    parts = {f"parts.{name}.{fact}": value for name, w in weights.items() for fact, value in w.facts().items()}
    return {"op": op, "dtype.x": "bf16", "dtype.y": "bf16", "attrs.activation": "gelu_tanh", "device.sm_count": 132,
            **parts}  # fmt: skip


def gated_row(id: str, scheme: QuantScheme = SCHEME) -> Callable[[int, int, int], Made]:
    def make(m: int, k: int, width: int) -> Made:
        x, gate_up, down = given = tensors(m, k, width, True)
        weights = {"gate_up": quantized(gate_up, scheme, 0.011), "down": quantized(down, scheme, 0.03)}
        return bind(prepared(id, mlp_facts("gated_mlp", weights), weights), x), given

    return make


def plain_row(id: str) -> Callable[[int, int, int], Made]:
    def make(m: int, k: int, width: int) -> Made:
        x, fc1, fc2 = given = tensors(m, k, width, False)
        weights = {"fc1": quantized(fc1), "fc2": quantized(fc2)}
        facts, biases = mlp_facts("mlp", weights), {"fc1_bias": normal(width) * 0, "fc2_bias": normal(k) * 0}
        return bind(prepared(id, facts, {**weights, **biases}), x), given

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
        for fp8 in (True, False):
            for act in ("gelu_tanh", "silu", "gelu"):
                what = f"{'fp8' if fp8 else 'bf16'} {act} M={m} I={width} K={k}"
                row: dict[str, Any] = {"call": what, "kernel": "gated.cu"}
                try:
                    row["error"], row["same_twice"] = check(m, width, k, fp8, act)
                except Exception as problem:
                    row["problem"] = f"{type(problem).__name__}: {problem}"[:300]
                    table.add(row)
                    return  # a device that failed answers no more
                table.add(row)
    m, k, width = 968, 2048, 16384
    flops = 4 * m * k * width
    for fp8 in (True, False):
        floor = floor_of((2 - fp8) * (2 * k * width + m * k) + 2 * m * width, flops, FP8_RATE if fp8 else BF16_RATE)
        table.time("prefix gate_up and activation", f"gated.cu {'fp8' if fp8 else 'bf16'}", floor,
                   lambda: one_launch(m, width, k, fp8, "gelu_tanh")[0])  # fmt: skip
    for scheme, words in ((SCHEME, ""), (STATIC, " static")):
        make = gated_row("cuda.gated_mlp.fp8_a8_fused", scheme)
        table.time("prefix block", f"cuda.gated_mlp.fp8_a8_fused{words}",
                   floor_of(3 * k * width + 4 * m * k, 6 * m * k * width), lambda: make(m, k, width)[0],
                   lambda: gated_error(make, m, k, width))  # fmt: skip
    table.time("prefix block", "bf16: gated.cu, cuBLAS", floor_of(6 * k * width, 6 * m * k * width, BF16_RATE),
               lambda: fused_bf16(m, k, width)[0], lambda: gated_error(fused_bf16, m, k, width))  # fmt: skip


def fused_bf16(m: int, k: int, width: int) -> Made:
    from phyai_backend_cuda.gated.product import GatedProduct

    x, gate_up, down = given = tensors(m, k, width, True)
    product = GatedProduct(gate_up, "gelu_tanh", 132)

    def run(x: torch.Tensor) -> torch.Tensor:
        h = torch.empty(m, width, dtype=BF16, device="cuda")
        product(x, None, h)
        return torch.mm(h, down.T)

    return bind(run, x), given


def one_launch(
    m: int, width: int, k: int, fp8: bool, act: str
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """The call, and what float32 gives."""
    from phyai_backend_cuda.gated.product import GatedProduct

    x, w = normal(m, k), weight(2 * width, k)
    h = torch.empty(m, width, dtype=BF16, device="cuda")
    a, sa = codes_of(x, 1) if fp8 else (x, None)
    b, sb = codes_of(w, 1) if fp8 else (w, None)
    product = GatedProduct(b, act, 132, None if sb is None else sb.flatten())
    scales = None if sa is None else sa.flatten()

    def call() -> torch.Tensor:
        product(a, scales, h)
        return h

    def want() -> torch.Tensor:
        wide = a.float() @ b.float().T if sa is None else (a.float() * sa) @ (b.float() * sb).T
        gate, up = wide.chunk(2, -1)
        function = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh")}[act]
        return function(gate) * up

    return call, want


def check(m: int, width: int, k: int, fp8: bool, act: str) -> tuple[float, bool]:
    call, want = one_launch(m, width, k, fp8, act)
    first = call().clone()
    torch.cuda.synchronize()
    return float(f"{relative(first, want()):.3g}"), bool(torch.equal(first, call()))


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
                lent = Resources()
                lent.objects = RESOURCES.objects
                lent.rows = (m, m)
                return bind(row.load()(facts, {"weight": held}, {}, lent).run, normal(m, k))

            table.time(what, "humming.gemm.fp8_a8", floor, fresh, calls=12)


def apart(table: Table, section: str, seconds: float) -> None:
    """A section in a process of its own; its rows, and what became of it."""
    out = table.out.with_name(f"{table.out.stem}_{section}.json")
    out.unlink(missing_ok=True)
    seconds = min(seconds, table.deadline - time.monotonic())
    if seconds < 5:
        table.add({"section": section, "problem": "not measured: the time was up"})
        return
    command = [sys.executable, __file__, "--out", str(out), "--only", section, "--here", "--seconds", f"{seconds - 3}"]
    begun = time.perf_counter()
    try:
        done = subprocess.run(command, timeout=seconds, capture_output=True, text=True)
        problem = "" if done.returncode == 0 else done.stderr.strip()[-400:]
    except subprocess.TimeoutExpired:
        problem = f"not done after {seconds:.0f} s"
    for row in json.loads(out.read_text())["rows"] if out.exists() else []:
        table.add(row)
    out.unlink(missing_ok=True)
    row = {"section": section, "seconds": round(time.perf_counter() - begun, 1)}
    table.add(row | ({"problem": problem} if problem else {}))


def sections(names: list[str]) -> Iterator[tuple[str, Callable[[Table], None]]]:
    every = {"gemms": gemms, "shapes": shapes, "patches": patches, "passes": passes, "blocks": blocks, "gated": gated,
             "flashinfer": flashinfer, "humming": humming}  # fmt: skip
    yield from ((name, every[name]) for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--seconds", type=float, default=120.0, help="for everything")
    parser.add_argument("--here", action="store_true", help="run every section in this process")
    given = parser.parse_args()
    table = Table(given.out, time.monotonic() + given.seconds)
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, section in sections(given.only):
        if name in APART and not given.here:
            apart(table, name, APART[name])
            continue
        begun = time.perf_counter()
        try:
            section(table)
        except Exception as problem:
            table.add({"section": name, "problem": f"{type(problem).__name__}: {problem}"[:300]})
        table.add({"section": name, "seconds": round(time.perf_counter() - begun, 1)})


if __name__ == "__main__":
    main()
