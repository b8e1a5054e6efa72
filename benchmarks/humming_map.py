"""The decision map of ``humming_gemm.py``'s figures, and a policy written from them. Needs no GPU.

    python benchmarks/humming_map.py benchmarks/results/humming_gemm.json [MORE.json ...] \\
        --png benchmarks/results/humming_gemm.png --policy policies/pi05/h200_humming_map.yaml

The map (PNG, and a table on stdout) shows the quickest candidate of every (layer, M) and its speed-up over cuBLAS bf16.
The policy gives every projection the scheme that makes it quickest at the number of rows that it has with one request
of three cameras, and leaves it in bf16 where none does; it names what was not measured. What a scheme costs in accuracy
the figures do not say.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from humming_plan import VARIANTS, fits
from humming_rows import LAYERS, SCHEMES
from phyai.quant.scheme import QuantScheme, TensorQuant

CUBLAS = "cuBLAS bf16"
#: The modules that each matrix is put together from (below a tower's path), and the M of a request with three cameras
#: and 200 prompt tokens (of vision it is 768, of which 816 is the nearest that is measured).
PARTS: Mapping[str, tuple[str, ...]] = {
    "gate_up": ("gate_proj", "up_proj"), "down": ("down_proj",), "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",), "fc1": ("fc1",), "fc2": ("fc2",),
}  # fmt: skip
TOWERS: Mapping[str, tuple[str, int, tuple[str, ...]]] = {
    "expert": ("expert", 50, ("gate_up", "down", "qkv", "o")),
    "prefix": ("language_model", 968, ("gate_up", "down", "qkv", "o")),
    "vision": ("vision_tower", 816, ("fc1", "fc2", "qkv", "o")),
}

Times = dict[tuple[str, int, str], float]


def times_of(results: Sequence[Mapping[str, Any]]) -> Times:
    """µs by (layer, M, scheme), of what was measured and is right."""
    return {
        (r["layer"], r["M"], r["scheme"]): r["us"] for r in results if "us" in r and r.get("error", 0.0) < 0.1
    }  # fmt: skip


def quickest(times: Times, layer: str, m: int, allowed: Sequence[str] | None = None) -> str | None:
    """The quickest candidate of a cell; None where nothing was measured."""
    found = {s: us for (at, n, s), us in times.items() if (at, n) == (layer, m) and (allowed is None or s in allowed)}
    return min(found, key=lambda scheme: found[scheme], default=None)


def missing(times: Times, layer: str, m: int) -> list[str]:
    """The schemes that were not measured in a cell of which others were, or not right."""
    found = {scheme for at, n, scheme in times if (at, n) == (layer, m)}
    return [scheme for scheme in SCHEMES if scheme not in found and scheme not in VARIANTS and fits(layer, scheme)]


def table(times: Times) -> str:
    """The map as text."""
    columns = sorted({m for _, m, _ in times})
    lines = ["layer            " + "".join(f"M={m}".rjust(27) for m in columns)]
    for layer in LAYERS:
        cells = []
        for m in columns:
            winner = quickest(times, layer, m)
            base = times.get((layer, m, CUBLAS))
            ratio = f" {base / times[layer, m, winner]:.2f}x" if base and winner else ""
            cells.append(((winner or "-") + ratio).rjust(27))
        lines.append(f"{layer:17}" + "".join(cells))
    return "\n".join(lines)


def draw(times: Times, path: Path, device: str) -> None:
    """The map as a picture: a colour for every candidate, its speed-up over cuBLAS in the cell."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = sorted({m for _, m, _ in times})
    layers = [layer for layer in LAYERS if any(at == layer for at, _, _ in times)]
    winners = {(layer, m): quickest(times, layer, m) for layer in layers for m in columns}
    names = sorted({name for name in winners.values() if name is not None})
    colours = plt.get_cmap("tab20")
    figure, axes = plt.subplots(figsize=(0.8 * len(columns) + 4, 0.42 * len(layers) + 1.6))
    grid = [[names.index(winners[layer, m]) if winners[layer, m] else -1 for m in columns] for layer in layers]
    shown = colours.with_extremes(under="white")
    axes.imshow(grid, cmap=shown, vmin=-0.5, vmax=19.5, aspect="auto")
    for i, layer in enumerate(layers):
        for j, m in enumerate(columns):
            winner, base = winners[layer, m], times.get((layer, m, CUBLAS))
            if winner is not None and base is not None:
                mark = "*" if missing(times, layer, m) else ""
                axes.text(j, i, f"{base / times[layer, m, winner]:.2f}×{mark}", ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(columns)), [str(m) for m in columns])
    axes.set_yticks(range(len(layers)), [f"{layer}  {LAYERS[layer][0]}×{LAYERS[layer][1]}" for layer in layers])
    axes.set_xlabel("M (rows). White: not measured. *: not every scheme was")
    axes.set_title(f"Quickest candidate, and its speed-up over cuBLAS bf16 ({device}, cold weights)", fontsize=10)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours(i)) for i in range(len(names))]
    axes.legend(handles, names, bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=8, frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


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


def policy_text(times: Times, device: str) -> str:
    """A policy that gives every projection the scheme under which it was quickest."""
    lines = [
        f"# The scheme under which each projection of π0.5 was quickest on an {device}, one request of three cameras.",
        "# Written by benchmarks/humming_map.py. Accuracy was not measured.", "schema: phyai.kernel/v1",
    ]  # fmt: skip
    quantized: list[str] = []
    rules: dict[str, list[str]] = {}
    for tower, (path, m, parts) in TOWERS.items():
        for part in parts:
            layer = f"{tower}.{part}"
            scheme = quickest(times, layer, m, (CUBLAS, *SCHEMES))
            left = missing(times, layer, m)
            besides = f"; not measured: {', '.join(left)}" if left else ""
            if scheme is None or scheme == CUBLAS:
                why = "was not measured" if scheme is None else f"is quickest in bf16{besides}"
                quantized.append(f"    # {layer} {why}.")
                continue
            row, meaning = SCHEMES[scheme]
            us, base = times[layer, m, scheme], times.get((layer, m, CUBLAS))
            gain = "" if base is None else f", {base / us:.2f} times cuBLAS's speed"
            modules = ("out_proj",) if layer == "vision.o" else PARTS[part]
            globs = ", ".join(f'{{glob: "*.{path}.*.{module}"}}' for module in modules)
            quantized += [
                f"    - id: {tower}-{part.replace('_', '-')}  # {us:.1f} µs at M = {m}{gain}{besides}",
                f"      match: {{any_of: [{globs}]}}", f"      scheme: {scheme_text(meaning)}", "      layout: humming",
            ]  # fmt: skip
            rules[meaning.name] = [
                f"  - id: {meaning.name.replace('_', '-')}-row",
                f"    match: {{op: gemm, quant.layout: humming, quant.scheme: {meaning.name}}}",
                f"    restrict_to: humming.gemm.{row}",
            ]
    if rules:
        chosen = [line for rule in rules.values() for line in rule]
        lines += ["quantization:", "  method: rtn", "  rules:", *quantized, "rules:", *chosen]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--png", type=Path)
    parser.add_argument("--policy", type=Path)
    given = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in given.results]
    times = times_of([result for report in reports for result in report["results"]])
    device = next((r["device"] for r in reports if "device" in r), "unknown GPU")
    print(table(times))
    if given.png is not None:
        draw(times, given.png, device)
    if given.policy is not None:
        given.policy.write_text(policy_text(times, device))


if __name__ == "__main__":
    main()
