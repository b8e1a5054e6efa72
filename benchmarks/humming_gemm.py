"""All Humming rows at π0.5's projections: µs by graph replay, weights cold, beside cuBLAS and torch's scaled product.

    python benchmarks/humming_gemm.py --out benchmarks/results/humming_gemm.json --policy policies/pi05/humming_map.yaml

For every (layer, M): every row with the inputs' quantization inside it; the library's own launch of the same kernel
(nothing of ours around it); cuBLAS bf16; ``torch._scaled_mm`` with codes made beforehand. The map (PNG) shows the
quickest of them, and the policy gives each tower the scheme that makes its projections quickest.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from humming_check import cublas
from humming_rows import LAYERS, SCHEMES, catalog, copies, microseconds, precompile, prepare
from phyai.dispatch.resources import EngineResources
from phyai.environment import Environment
from phyai.quant.scheme import QuantScheme, TensorQuant

M = (1, 10, 50, 64, 200, 256, 816, 968, 1024, 4096)


def library_launch(name: str, layer: str, m: int) -> Any:
    """A function that launches the library's kernel through its own operator, on inputs quantized beforehand."""
    from humming_rows import weight_of
    from phyai_backend_humming.convert import arrange, arranged_bias, at_real_size
    from phyai_backend_humming.gemm import quantizer
    from phyai_backend_humming.layout import pack
    from phyai_backend_humming.schedules import compile_schedules

    _, scheme = SCHEMES[name]
    n, k, bias = LAYERS[layer]
    plain, own = weight_of(scheme, n, k, bias=bias)
    packed = pack(plain)
    final = arrange(packed, torch.bfloat16)
    config = at_real_size(final.config, n, k, bias=bias)
    kernels = compile_schedules(config, (m,), invariant=False, device=0)
    x = torch.randn(m, k, device="cuda").bfloat16()
    quantize = quantizer(scheme.input, plain)
    codes, scales = (x, None) if quantize is None else quantize(x)
    locks = torch.zeros(2048, dtype=torch.int32, device="cuda")
    y = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    get = final.tensors.get
    arranged = None if own is None else arranged_bias(final, own)

    def launch() -> None:
        torch.ops.humming.launch_kernel.out(
            kernels.configs[0], codes, final.tensors["weight"], final.tensors["weight_scale"], get("weight_scale_2"),
            scales, None, get("zero_point"), arranged, y, None, None, None, None, locks, 1, 0, False,
        )  # fmt: skip

    return launch


def ours(name: str, layer: str, m: int, environment: Environment, resources: EngineResources, seed: int) -> Any:
    kernel, scheme = SCHEMES[name]
    n, k, bias = LAYERS[layer]
    row = prepare(kernel, scheme, n, k, environment, resources, m=(m,), bias=bias, seed=seed)
    x = torch.randn(m, k, device="cuda").bfloat16()
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: row.prepared.run(x, out=out)


def scaled_mm(layer: str, m: int) -> float:
    n, k, _ = LAYERS[layer]
    if n % 16 or k % 16:
        return float("nan")
    count = copies(n * k)
    x = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
    a, b = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    ws = [torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn).T for _ in range(count)]
    calls = [lambda w=w: torch._scaled_mm(x, w, a, b, out_dtype=torch.bfloat16) for w in ws]
    return microseconds(calls * max(1, 16 // count))


def measure(layer: str, m: int, environment: Environment) -> list[dict[str, Any]]:
    """All candidates of one (layer, M)."""
    found = [cublas(layer, m), {"scheme": "torch._scaled_mm fp8", "layer": layer, "M": m, "us": scaled_mm(layer, m)}]
    n, k, _ = LAYERS[layer]
    for name, (_, scheme) in SCHEMES.items():
        if scheme.input is not None and scheme.input.group_size and k % scheme.input.group_size:
            continue
        resources = EngineResources(environment.device)
        count = copies(n * k * scheme.weight.bits // 8)
        repeats = max(1, 16 // count)
        rows = [ours(name, layer, m, environment, resources, seed) for seed in range(count)]
        bare = [library_launch(name, layer, m) for _ in range(count)]
        found.append(
            {
                "scheme": name, "layer": layer, "M": m, "us": microseconds(rows * repeats),
                "library_us": microseconds(bare * repeats),
            }
        )  # fmt: skip
    return found


def best(results: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    """The quickest candidate of every (layer, M)."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for result in results:
        if "us" not in result or result["us"] != result["us"]:
            continue
        key = (result["layer"], result["M"])
        if key not in found or result["us"] < found[key]["us"]:
            found[key] = result
    return {key: result["scheme"] for key, result in found.items()}


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """The decision map: the quickest candidate by layer and M, with its speed-up over cuBLAS."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    winners = best(results)
    names = sorted(set(winners.values()))
    times = {(r["layer"], r["M"], r["scheme"]): r["us"] for r in results if "us" in r}
    layers = [layer for layer in LAYERS if any(key[0] == layer for key in winners)]
    columns = sorted({m for _, m in winners})
    figure, axes = plt.subplots(figsize=(1.1 * len(columns) + 3, 0.45 * len(layers) + 2))
    grid = [[names.index(winners[layer, m]) if (layer, m) in winners else -1 for m in columns] for layer in layers]
    axes.imshow(grid, cmap="tab20", vmin=0, vmax=19, aspect="auto")
    for i, layer in enumerate(layers):
        for j, m in enumerate(columns):
            winner = winners.get((layer, m))
            if winner is not None:
                ratio = times.get((layer, m, "cuBLAS bf16"), float("nan")) / times[layer, m, winner]
                axes.text(j, i, f"{ratio:.2f}×", ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(columns)), [str(m) for m in columns])
    axes.set_yticks(range(len(layers)), layers)
    axes.set_xlabel("M")
    axes.set_title("quickest row, and its speed-up over cuBLAS bf16")
    handles = [plt.Rectangle((0, 0), 1, 1, color=plt.get_cmap("tab20")(i)) for i in range(len(names))]
    axes.legend(handles, names, bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=8)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


#: Each tower: what its projections are called, and the rows that its calls have.
TOWERS: Mapping[str, tuple[str, int]] = {
    "expert": ("*.expert.*_proj", 50), "prefix": ("*.language_model.*_proj", 968), "vision": ("*.vision_tower.*", 816),
}  # fmt: skip


def tower_scheme(results: list[dict[str, Any]], tower: str) -> str | None:
    """The scheme under which the tower's projections take least time together; None where cuBLAS does."""
    _, rows = TOWERS[tower]
    layers = [layer for layer in LAYERS if layer.startswith(f"{tower}.")]
    times = {(r["layer"], r["scheme"]): r["us"] for r in results if "us" in r and r["M"] == rows}
    sums = {
        name: sum(times[layer, name] for layer in layers)
        for name in ("cuBLAS bf16", *SCHEMES)
        if all((layer, name) in times for layer in layers)
    }
    winner = min(sums, key=lambda name: sums[name], default="cuBLAS bf16")
    return None if winner == "cuBLAS bf16" else winner


def scheme_text(scheme: QuantScheme) -> str:
    """A scheme as a quantization rule writes it."""

    def tensor(quant: TensorQuant) -> str:
        if quant.format in ("mxfp4", "nvfp4"):
            return quant.format
        parts = [f"dtype: {quant.dtype}"]
        if quant.group_size:
            parts.append(f"group_size: {quant.group_size}")
        elif quant.block_shape:
            parts.append(f"block_shape: {list(quant.block_shape)}")
        else:
            parts.append(f"granularity: {quant.granularity}")
        if quant.zero_point:
            parts.append(f"zero_point: {quant.zero_point}")
        if quant.scale_dtype != "fp32":
            parts.append(f"scale_dtype: {quant.scale_dtype}")
        return "{" + ", ".join(parts) + "}"

    given = "null" if scheme.input is None else tensor(scheme.input)
    return f"{{weight: {tensor(scheme.weight)}, input: {given}}}"


def policy_text(results: list[dict[str, Any]]) -> str:
    """A policy that gives each tower the quickest scheme of this run. What that costs in accuracy it does not say."""
    quantized, rules = [], []
    for tower, (glob, rows) in TOWERS.items():
        name = tower_scheme(results, tower)
        if name is None:
            continue
        quantized += [
            f"    - id: {tower}-projections", f'      match: {{glob: "{glob}"}}',
            f"      scheme: {scheme_text(SCHEMES[name][1])}", "      layout: humming",
        ]  # fmt: skip
        rules += [
            f"  - id: {tower}-rows", f"    match: {{op: gemm, role: {tower}, quant.layout: humming}}",
            f"    params: {{rows: [{rows}]}}",
        ]  # fmt: skip
    head = ["# Written by benchmarks/humming_gemm.py: the scheme under which each tower's projections are quickest.",
            "schema: phyai.kernel/v1"]  # fmt: skip
    body = ["quantization:", "  method: rtn", "  rules:", *quantized, "rules:", *rules] if quantized else []
    return "\n".join([*head, *body]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--m", nargs="*", type=int, default=list(M))
    parser.add_argument("--seconds", type=float, default=3600.0)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    environment = Environment.detect("cuda", libraries=catalog().libraries)
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "libraries": dict(environment.libraries)}
    report["compiled"] = precompile(
        (s, *LAYERS[layer], (m,), False) for layer in arguments.layers for m in arguments.m for _, s in SCHEMES.values()
    )
    results = report.setdefault("results", [])
    for layer in arguments.layers:
        for m in arguments.m:
            if time.monotonic() > deadline:
                break
            results += measure(layer, m, environment)
            torch.cuda.empty_cache()
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
            print(layer, m, best(results[-len(SCHEMES) - 2 :]), flush=True)
    overhead = sorted(
        r["us"] / r["library_us"] for r in results if "library_us" in r and not SCHEMES[r["scheme"]][1].input
    )
    report["ours over the library's launch, median"] = overhead[len(overhead) // 2] if overhead else None
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    draw(results, arguments.out.with_suffix(".png"))
    if arguments.policy is not None:
        arguments.policy.write_text(policy_text(results))


if __name__ == "__main__":
    with torch.no_grad():
        main()
