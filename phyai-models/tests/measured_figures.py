"""What was measured on an H200, from ``benchmarks/results``: µs of kernels, by op and sizes of the call."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import attrs
from phyai.tune.key import bucket_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

#: The kernels behind what the figures call otherwise.
NAMED = {
    "torch.gemm (cuBLAS)": "torch.gemm.bf16",
    "torch.addcmul": "torch.gated_residual",
    "torch: add_, layer_norm": "decomposed.layer_norm_add",
    "torch: linear, gelu, linear": "decomposed.mlp",
    "torch: cast, conv2d.patches, add": "decomposed.patch_embedding",
}
#: How split attention cuts so many requests up today (splits, stages). The figures hold other cuts too:
#: benchmarks/notes/skinny.md.
SPLITS = {2: (8, 2), 4: (8, 1), 8: (4, 1)}
#: Sizes of the calls that the figures of FP8 know by name.
FP8 = {
    "prefix qkv": {"M": 968, "N": 2560, "K": 2048}, "prefix o": {"M": 968, "N": 2048, "K": 2048},
    "prefix gate_up": {"M": 968, "N": 32768, "K": 2048}, "prefix down": {"M": 968, "N": 2048, "K": 16384},
    "prefix block": {"M": 968, "K": 2048, "I": 16384, "N": 2048},
    "norm and feed-forward block": {"M": 968, "K": 2048, "I": 16384, "N": 2048},
    "norm, qkv, rope and cache": {"T": 968, "N": 2560, "K": 2048},
    "expert qkv": {"M": 50, "N": 2560, "K": 1024}, "expert o": {"M": 50, "N": 1024, "K": 2048},
    "expert gate_up": {"M": 50, "N": 8192, "K": 1024}, "expert down": {"M": 50, "N": 1024, "K": 4096},
}  # fmt: skip
#: Where single calls were timed.
ALONE = (
    "rows.json", "rows_gemm.json", "rows_library_gemms.json", "rows_attention.json", "rows_few.json",
    "rows_patches.json", "vision_attention.json",
)  # fmt: skip
BLOCK = {"M": 50, "K": 1024, "I": 4096, "N": 1024}

Figure: TypeAlias = "tuple[str, Mapping[str, int], str, float]"


@attrs.frozen
class Measured:
    """One call: its op, its sizes as far as they were written down, whether its weights are quantized, µs by kernel."""

    op: str
    dims: Mapping[str, int]
    quantized: bool
    us: dict[str, float] = attrs.field(factory=dict)

    def distance(self, op: str, facts: Mapping[str, Any], dynamic: Collection[str]) -> int | None:
        """How far its sizes are from a call's; None where it is another call. ``dynamic`` dimensions may differ, as far
        as tuning takes sizes for alike."""
        quantized = any(name.startswith(("quant.scheme", "parts.")) for name in facts)
        if (op, quantized) != (self.op, self.quantized):
            return None
        found = 0
        for dim, size in self.dims.items():
            here = facts.get(f"shape.{dim}")
            if here != size and not (here and dim in dynamic and bucket_of(here) == bucket_of(size)):
                return None
            found += abs(here - size)
        return found


def figures() -> tuple[Measured, ...]:
    """Every figure of a kernel as it is called today, the mean of its runs; what was timed alone before what was timed
    in the model."""
    found: dict[object, Measured] = {}
    for quantized, source in ((False, _in_the_model()), (False, _alone()), (True, _fp8())):
        runs: dict[str, dict[object, list[float]]] = {}
        for op, dims, kernel, us in source:
            key = op, tuple(sorted(dims.items())), quantized
            found.setdefault(key, Measured(op, dims, quantized))
            runs.setdefault(kernel, {}).setdefault(key, []).append(us)
        for kernel, by_call in runs.items():
            for key, times in by_call.items():
                found[key].us[kernel] = fmean(times)
    return tuple(found.values())


def times_of(
    op: str, facts: Mapping[str, Any], dynamic: Collection[str], kernels: Collection[str], known: Collection[Measured]
) -> dict[str, float]:
    """µs of ``kernels`` at the sizes nearest to the call's at which two of them were measured, or else one."""
    found = []
    for one in known:
        distance = one.distance(op, facts, dynamic)
        timed = {id: us for id, us in one.us.items() if id in kernels}
        if distance is not None and timed:
            found.append((len(timed) < 2, distance, timed))
    return min(found, key=lambda one: one[:2])[2] if found else {}


def _alone() -> Iterator[Figure]:
    for file in ALONE:
        for row in (row for row in _rows(file) if "kernel" in row):  # others are of chains of calls
            kernel = NAMED.get(row["kernel"], row["kernel"])
            overlaps = ".skinny_" in kernel or kernel.endswith(".overlap")  # behind its own kind: another figure
            if "us" in row and "{" not in kernel and "part of" not in row["call"] and not overlaps:
                yield *_call(row["call"]), kernel, row["us"]
    for row in _rows("attention_split.json"):
        if row["kind"] == "time" and "us" in row and "overlap" not in row:
            requests, queries, _ = map(int, row["call"].split(" x "))
            if (row.get("splits"), row.get("stages")) == SPLITS.get(requests, (None, None)):
                yield "attention_paged", {"T": requests * queries}, row["kernel"], row["us"]
    for row in _rows("attention_prefill.json"):
        if row["kind"] == "time" and "us" in row and row.get("default", True):
            requests, queries, _ = map(int, row["call"].split(" x "))
            yield "attention_paged", {"T": requests * queries}, row["kernel"], row["us"]
    for row in _rows("skinny.json"):
        named = row["kind"] == "time" and " M=" in row["call"]
        if named and row["kernel"] == "bf16" and row["default"] and "us" in row:
            yield *_call(row["call"]), "cuda.gemm.skinny_16bit", row["us"]
        if row["kind"] == "chain" and row["kernel"] == "torch and Triton rows":
            yield "gated_mlp", BLOCK, "decomposed.gated_mlp", row["us"]
        if row["kind"] == "chain" and (row["kernel"], row.get("norm"), row.get("overlap")) == ("bf16", "torch", True):
            yield "gated_mlp", BLOCK, "cuda.gated_mlp.skinny_16bit", row["us"]

    for row in _rows("dense.json"):
        if row["kind"] == "time" and row["call"].startswith(("gemm ", "mlp ")):
            # behind norms and attention of SigLIP's layers they gain as much by overlap as behind their own kind
            overlapped = row.get("overlapped_us") if " M=768 " in row["call"] else None
            yield *_call(row["call"]), row["kernel"], overlapped or row["us"]
    for row in _rows("encoder.json"):
        if row["kind"] == "chain":  # one by one, products of two images and one are cuBLAS's
            kernel, _, products = row["kernel"].partition(" ")
            if products in ("", "(cuda.*.dense_16bit)" if " B=3 " in row["call"] else "(cuBLAS)"):
                yield *_call(row["call"]), kernel, row["us"]
    for row in _rows("skinny_fused.json"):
        if row["kind"] == "time" and row["format"] == "bf16" and row.get("splits") is None and "us" in row:
            yield *_call(row["call"]), row["kernel"], row["us"]


def _fp8() -> Iterator[Figure]:
    for row in (*_rows("rows_fp8.json"), *_rows("rows_a8.json")):
        if row.get("call") in FP8 and re.fullmatch(r"(cuda|torch|humming|flashinfer)\.\S+", row["kernel"]):
            yield row["kernel"].split(".")[1], FP8[row["call"]], row["kernel"], row["us"]


def _in_the_model() -> Iterator[Figure]:
    """Attention over pages in π0.5's graphs, and the whole step with the expert in one launch and layer by layer."""
    for file in ("pi05_3cameras_exact.json", "pi05_3cameras_bucket.json", "pi05_batch8.json", "pi05_batch8_fa2.json"):
        for stage in json.loads((RESULTS / file).read_text())["stages"].values():
            by_site = stage.get("by_site", {"columns": [], "rows": []})
            for row in (dict(zip(by_site["columns"], values, strict=True)) for values in by_site["rows"]):
                if row["op"] == "attention_paged":
                    yield row["op"], {"T": _sizes(row["size"])["T"]}, row["kernel"], row["us"] / row["calls"]
    names = {"one_launch": "cuda.expert_steps.persistent", "layer_by_layer": "decomposed.expert_steps"}
    for case, figure in json.loads((RESULTS / "pi05_dispatch.json").read_text())["cases"].items():
        yield "expert_steps", {"M": 50, "B": 1}, names[case], 1e3 * figure["runner_ms"]


def _rows(file: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / file).read_text())["rows"]
    return rows


def _call(text: str) -> tuple[str, dict[str, int]]:
    op = text.split(" ")[0]
    sizes = _sizes(text)
    if op in ("kv_write", "qkv_rope_kv_write"):  # whose rows are tokens
        sizes["T"] = sizes.pop("M")
    return "gemm" if op == "expert" else op, {n: size for n, size in sizes.items() if n not in ("keys", "requests")}


def _sizes(text: str) -> dict[str, int]:
    return {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", text)}
