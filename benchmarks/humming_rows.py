"""What the Humming benchmarks share: schemes of every row, a catalog, prepared rows, and times of captured calls."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import torch
from phyai.calls import call_facts
from phyai.catalog import Catalog
from phyai.dispatch.resources import EngineResources
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Prepared
from phyai.plugins import Plugin, PluginStatus
from phyai.quant.scheme import MXFP4, NVFP4, QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight
from phyai.testing.quantized import quantized_weight
from phyai_backend_humming import plugin, rows
from phyai_backend_humming.layout import pack

if shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc"):
    os.environ.setdefault("HUMMING_COMPILER", "nvcc")

_FP8 = TensorQuant("fp8_e4m3", "token", dynamic=True)
_INT8 = TensorQuant("int8", "token", dynamic=True)


def _int(bits: int, **more: Any) -> TensorQuant:
    return TensorQuant(f"int{bits}", scale_dtype="bf16", **more)


#: The schemes that are timed and tested, by name: the row's, and what sets them apart.
SCHEMES: Mapping[str, tuple[str, QuantScheme]] = {
    "w4a16 g128": ("w4a16", QuantScheme(_int(4, granularity="group", group_size=128))),
    "w4a16 g128 zp": ("w4a16", QuantScheme(_int(4, granularity="group", group_size=128, zero_point="int"))),
    "w8a16 channel": ("w8a16", QuantScheme(_int(8, granularity="channel"))),
    "fp8_a16 channel": ("fp8_a16", QuantScheme(TensorQuant("fp8_e4m3", "channel", scale_dtype="bf16"))),
    "mxfp4_a16": ("mxfp4_a16", QuantScheme(MXFP4)),
    "nvfp4_a16": ("nvfp4_a16", QuantScheme(NVFP4)),
    "fp8_a8 channel": ("fp8_a8", QuantScheme(TensorQuant("fp8_e4m3", "channel", scale_dtype="bf16"), _FP8)),
    "fp8_a8 block128": (
        "fp8_a8",
        QuantScheme(
            TensorQuant("fp8_e4m3", "block", block_shape=(128, 128)),
            TensorQuant("fp8_e4m3", "group", group_size=128, dynamic=True),
        ),
    ),
    "int8_a8 channel": ("int8_a8", QuantScheme(_int(8, granularity="channel"), _INT8)),
    "int4_a8_fp8 g128": ("int4_a8_fp8", QuantScheme(_int(4, granularity="group", group_size=128), _FP8)),
    "int4_a8_int8 g128": ("int4_a8_int8", QuantScheme(_int(4, granularity="group", group_size=128), _INT8)),
    "mxfp4_a8": ("mxfp4_a8", QuantScheme(MXFP4, _FP8)),
}
#: π0.5's projections: [N, K], and whether they have a bias.
LAYERS: Mapping[str, tuple[int, int, bool]] = {
    "vision.qkv": (3456, 1152, True), "vision.o": (1152, 1152, True), "vision.fc1": (4304, 1152, True),
    "vision.fc2": (1152, 4304, True), "prefix.qkv": (2560, 2048, False), "prefix.o": (2048, 2048, False),
    "prefix.gate_up": (32768, 2048, False), "prefix.down": (2048, 16384, False), "expert.qkv": (2560, 1024, False),
    "expert.o": (1024, 2048, False), "expert.gate_up": (8192, 1024, False), "expert.down": (1024, 4096, False),
    "head.action_in": (1024, 32, True), "head.action_out": (32, 1024, True), "head.time": (1024, 1024, True),
}  # fmt: skip


def catalog() -> Catalog:
    """The reference's and Humming's records, whether or not their distributions are installed."""
    from phyai_backend_reference import plugin as reference

    def made(name: str, module: Any) -> Plugin:
        def records(hook: str) -> tuple[Any, ...]:
            return tuple(getattr(module, hook)()) if hasattr(module, hook) else ()

        return Plugin(
            PluginStatus(name), kernels=records("phyai_kernels"), quant_formats=records("phyai_quant_formats"),
            libraries=records("phyai_libraries"),
        )  # fmt: skip

    return Catalog.build([made("humming", plugin), made("reference", reference)])


def facts_of(environment: Environment, scheme: QuantScheme, n: int, k: int, m: int | None, bias: bool) -> Facts:
    from phyai.ops import CORE_OPS

    gemm = next(op for op in CORE_OPS if op.name == "gemm")
    dims = {"N": n, "K": k} | ({} if m is None else {"M": m})
    dtypes = {"x": "bf16", "y": "bf16", "weight": scheme.weight.dtype if scheme.weight.bits == 8 else "uint8"}
    return call_facts(
        gemm, dims=dims, dtypes=dtypes | ({"bias": "bf16"} if bias else {}), present=("bias",) if bias else (),
        extra={**environment.facts(), **scheme.facts(), "quant.layout": "humming", "mode.capture": False},
    )  # fmt: skip


@attrs.frozen(eq=False)
class Row:
    """One prepared row with the weight that it was made of."""

    plain: QuantizedWeight
    bias: torch.Tensor | None
    prepared: Prepared


def weight_of(scheme: QuantScheme, n: int, k: int, *, bias: bool, seed: int = 0) -> tuple[QuantizedWeight, Any]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    values = torch.randn(n, k, generator=generator, device="cuda") / k**0.5
    own = torch.randn(n, generator=generator, device="cuda").bfloat16() if bias else None
    return quantized_weight(values, scheme), own


def prepare(
    row: str, scheme: QuantScheme, n: int, k: int, environment: Environment, resources: EngineResources, *,
    m: Sequence[int], bias: bool = False,
) -> Row:  # fmt: skip
    kernel = next(kernel for kernel in rows.KERNELS if kernel.id == f"humming.gemm.{row}")
    facts = facts_of(environment, scheme, n, k, None, bias)
    reason = kernel.when.why_not(facts)
    assert reason is None, f"{kernel.id} refuses {scheme.name} [{n}, {k}]: {reason}"
    plain, own = weight_of(scheme, n, k, bias=bias)
    weights = {"weight": pack(plain)} | ({} if own is None else {"bias": own})
    return Row(plain, own, kernel.load()(facts, weights, {"rows": list(m)}, resources))


def specifications_of(
    scheme: QuantScheme, n: int, k: int, bias: bool, rows: Sequence[int], invariant: bool = False
) -> dict[str, dict[str, Any]]:
    """What the library compiles for these numbers of rows, by key: of numbers that share a kernel, one."""
    from phyai_backend_humming.convert import layer_config
    from phyai_backend_humming.schedules import specifications, unique

    config = layer_config(scheme, n, k, torch.bfloat16, 0, bias=bias)
    return unique([spec for spec, _ in specifications(config, rows, invariant=invariant, device=0)])


def precompile(wanted: Iterator[tuple[QuantScheme, int, int, bool, tuple[int, ...], bool]]) -> dict[str, float]:
    """Compile what (scheme, N, K, bias, rows, invariant) ask for, side by side; the number of kernels and seconds."""
    from phyai_backend_humming.library import library

    begun = time.perf_counter()
    specs: dict[str, dict[str, Any]] = {}
    for one in wanted:
        specs |= specifications_of(*one)
    kind = library().HummingKernel
    with ThreadPoolExecutor(library().workers()) as pool:
        list(pool.map(lambda spec: kind.compile_many([(kind, spec)], 0), specs.values()))
    return {"kernels": len(specs), "seconds": time.perf_counter() - begun}


def microseconds(calls: Sequence[Callable[[], Any]]) -> float:
    """The median time of one of ``calls``, captured in one graph; more of them than L2 holds make each find it cold."""
    return side_by_side({"": calls})[""]


def side_by_side(sides: Mapping[str, Sequence[Callable[[], Any]]]) -> dict[str, float]:
    """The median time of one call of every side: each side is captured in a graph, and the graphs take twelve turns,
    every other one in the reverse order: what a side finds in L2 is what the one in front of it has left there.

    Turns end after a second, but not before five of them.
    """
    graphs = {}
    for name, calls in sides.items():
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        graph = graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    times: dict[str, list[float]] = {name: [] for name in sides}
    begun = time.monotonic()
    for turn in range(14):
        if turn >= 7 and time.monotonic() - begun > 1:
            break
        for name, graph in list(graphs.items())[:: -1 if turn % 2 else 1]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3 / len(sides[name]))
    return {name: statistics.median(found[2:]) for name, found in times.items()}


def copies(nbytes: int) -> int:
    """How many weights of that size together exceed twice an H200's L2 cache; at least 2, at most 128."""
    return max(2, min(128, -(-(128 << 20) // max(nbytes, 1))))
