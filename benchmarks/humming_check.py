"""Every Humming row on a GPU: right, capturable, in place, batch-invariant where it says so; and a short timing.

    python benchmarks/humming_check.py --out benchmarks/results/humming_check.json [--seconds 200]

Results are written as they come. Shapes: one that tiles divide, and one that is filled up (N = 136, K = 4304), with a
bias; what compiles is compiled first, side by side.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from humming_rows import LAYERS, SCHEMES, Row, catalog, copies, microseconds, precompile, prepare
from phyai.dispatch.resources import EngineResources
from phyai.environment import Environment
from phyai.quant.realize.dequantize import dequantize
from phyai.quant.realize.quantize import quantize_input
from phyai.quant.scheme import QuantScheme

SHAPES = ((512, 1024, False), (136, 4304, True))
ROWS = (64,)
TIMED = ("expert.gate_up", "expert.down", "prefix.gate_up")
TIMED_M = (1, 50, 968)


def shapes(scheme: QuantScheme) -> Iterator[tuple[int, int, bool]]:
    for n, k, bias in SHAPES:
        if scheme.input is not None and scheme.input.group_size and k % scheme.input.group_size:
            k = -(-k // 128) * 128
        yield n, k, bias


def reference(row: Row, x: torch.Tensor) -> torch.Tensor:
    """Float64, with inputs as their codes stand for them."""
    values = x.reshape(-1, x.shape[-1]).float()
    given = row.plain.scheme.input
    if given is not None:
        values = quantize_input(values, given, row.plain.input_scale).dequantized()
    y = values.double() @ dequantize(row.plain).double().T
    y = y if row.bias is None else y + row.bias.double()
    return y.reshape(*x.shape[:-1], -1)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def check(name: str, variant: str, n: int, k: int, bias: bool, environment: Environment) -> dict[str, Any]:
    kernel, scheme = SCHEMES[name]
    resources = EngineResources(environment.device)
    row = prepare(kernel + variant, scheme, n, k, environment, resources, m=ROWS, bias=bias)
    run = row.prepared.run
    found: dict[str, Any] = {}
    x = torch.randn(200, k, device="cuda").bfloat16()
    for m in (1, 17, 50, 200):
        out = torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)
        run(x[:m], out=out)
        found[f"error M={m}"] = error(out, reference(row, x[:m]))
    found["empty"] = tuple(run(x[:0]).shape) == (0, n)
    cube = torch.randn(2, 5, k + 8, device="cuda").bfloat16()[..., 8:]
    found["3-D, with gaps"] = error(run(cube), reference(row, cube))
    odd = torch.randn(7 * k + 1, device="cuda").bfloat16()[1:].view(7, k)
    found["odd address"] = error(run(odd), reference(row, odd))
    found["reproducible"] = all(torch.equal(run(x), run(x)) for _ in range(3))
    found["batch invariant"] = torch.equal(run(x)[:3], run(x[:3]))
    found |= _captured(row, x, n)
    other = prepare_other(kernel + variant, scheme, n, k, bias)
    address = row.prepared.refresh
    assert address is not None
    address(other[1])
    found["refreshed"] = error(run(x), reference(other[0], x))
    limit = 8e-3 if scheme.input is None else 2e-2
    errors = [v for v in found.values() if isinstance(v, float)]
    sure = found["empty"] and (not variant or (found["reproducible"] and found["batch invariant"]))
    return {"passed": bool(sure) and max(errors) < limit, **found}


def prepare_other(row: str, scheme: QuantScheme, n: int, k: int, bias: bool) -> tuple[Row, dict[str, Any]]:
    from humming_rows import weight_of
    from phyai_backend_humming.layout import pack

    plain, own = weight_of(scheme, n, k, bias=bias, seed=1)
    return Row(plain, own, None), {"weight": pack(plain)} | ({} if own is None else {"bias": own})  # type: ignore[arg-type]


def _captured(row: Row, x: torch.Tensor, n: int) -> dict[str, Any]:
    """Captured, then replayed with other inputs in the same place."""
    held, out = x[:50].clone(), torch.empty(50, n, device="cuda", dtype=torch.bfloat16)
    row.prepared.run(held, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        row.prepared.run(held, out=out)
    errors = []
    for start in (0, 100, 150):
        held.copy_(x[start : start + 50])
        out.fill_(torch.nan)
        graph.replay()
        errors.append(error(out, reference(row, held)))
    return {"replayed": max(errors)}


def timed(name: str, layer: str, m: int, environment: Environment) -> dict[str, Any]:
    kernel, scheme = SCHEMES[name]
    n, k, bias = LAYERS[layer]
    resources = EngineResources(environment.device)
    count = copies(n * k * scheme.weight.bits // 8)
    made = [prepare(kernel, scheme, n, k, environment, resources, m=(m,), bias=bias) for _ in range(count)]
    xs = [torch.randn(m, k, device="cuda").bfloat16() for _ in made]
    outs = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in made]
    calls = [lambda r=r, x=x, o=o: r.prepared.run(x, out=o) for r, x, o in zip(made, xs, outs, strict=True)]
    return {"scheme": name, "layer": layer, "M": m, "us": microseconds(calls * max(1, 16 // count))}


def cublas(layer: str, m: int) -> dict[str, Any]:
    n, k, _ = LAYERS[layer]
    count = copies(2 * n * k)
    ws = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(count)]
    x = torch.randn(m, k, device="cuda").bfloat16()
    outs = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in ws]
    calls = [lambda w=w, o=o: torch.mm(x, w.T, out=o) for w, o in zip(ws, outs, strict=True)]
    return {"scheme": "cuBLAS bf16", "layer": layer, "M": m, "us": microseconds(calls * max(1, 16 // count))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200.0)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    environment = Environment.detect("cuda", libraries=catalog().libraries)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "libraries": dict(environment.libraries), "checks": {}, "times": [],
    }  # fmt: skip

    def save() -> None:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")

    variants = ("", "_batch_invariant")
    every = [
        (scheme, n, k, bias, ROWS, bool(variant))
        for _, scheme in SCHEMES.values() for variant in variants for n, k, bias in shapes(scheme)
    ]  # fmt: skip
    report["compiled"] = precompile(iter(every))
    print("compiled", json.dumps(report["compiled"]), flush=True)
    for name, (_, scheme) in SCHEMES.items():
        for variant in variants:
            for n, k, bias in shapes(scheme):
                label = f"{name}{variant} [{n}, {k}]"
                try:
                    report["checks"][label] = check(name, variant, n, k, bias, environment)
                except Exception as problem:  # the next row is still worth checking
                    where = traceback.format_exc().strip().splitlines()[-6:]
                    report["checks"][label] = {
                        "passed": False,
                        "error": f"{type(problem).__name__}: {problem}",
                        "at": where,
                    }
                print(label, json.dumps(report["checks"][label]), flush=True)
                save()
    report["passed"] = sum(c["passed"] for c in report["checks"].values())
    report["failed"] = sorted(name for name, c in report["checks"].items() if not c["passed"])
    save()
    print("passed", report["passed"], "failed", report["failed"], flush=True)
    if time.monotonic() < deadline - 60:
        more = [(s, *LAYERS[layer], (m,), False) for _, s in SCHEMES.values() for layer in TIMED for m in TIMED_M]
        report["compiled for times"] = precompile(iter(more))
    for layer in TIMED:
        for m in TIMED_M:
            for name in (None, *SCHEMES):
                if time.monotonic() > deadline:
                    save()
                    return
                try:
                    report["times"].append(cublas(layer, m) if name is None else timed(name, layer, m, environment))
                except Exception as problem:
                    report["times"].append({"scheme": name, "layer": layer, "M": m, "error": str(problem)[:300]})
                print(json.dumps(report["times"][-1]), flush=True)
                save()


if __name__ == "__main__":
    with torch.no_grad():
        main()
