"""Where the time of one inference goes: its kernels, one after another, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.errors import InputError
from phyai.install import install

NAME = 160  # characters of a kernel's name that are shown


@attrs.frozen
class Span:
    """One kernel: when it began and how long it ran, in microseconds since the first one of its stage."""

    name: str
    begin: float
    length: float


def profile(work: Callable[[], object], device: torch.device) -> list[Span]:
    """The kernels of one ``work`` on a GPU (the operators that took time themselves, on a CPU), by torch's profiler."""
    gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU, activity.CUDA] if gpu else [activity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        if gpu:
            torch.cuda.synchronize(device)
    found = []
    for event in profiler.events() or []:
        on_device = str(event.device_type).endswith("CUDA")
        if on_device == gpu and (gpu or not event.cpu_children):
            found.append(Span(event.name, event.time_range.start, event.time_range.end - event.time_range.start))
    found.sort(key=lambda span: span.begin)
    first = found[0].begin if found else 0.0
    return [attrs.evolve(span, begin=span.begin - first) for span in found]


def totals(spans: Sequence[Span]) -> list[tuple[str, int, float]]:
    """Name, launches and microseconds of every kernel, the longest first. Names of templates are cut.

    >>> totals([Span("a", 0, 1.0), Span("b", 1, 5.0), Span("a", 6, 2.0)])
    [('b', 1, 5.0), ('a', 2, 3.0)]
    """
    by_name: dict[str, list[float]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span.length)
    ordered = sorted(by_name.items(), key=lambda item: -sum(item[1]))
    return [(name[:NAME], len(each), round(sum(each), 3)) for name, each in ordered]


def draw(stages: Mapping[str, Sequence[Span]], path: Path, title: str, notes: Mapping[str, str]) -> None:
    """Write a PNG: a lane for every stage, kernels coloured by what they are. ``notes`` stand beside a stage's name.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        from matplotlib.patches import Patch
    except ImportError as error:
        raise InputError(f"a timeline needs matplotlib: {install('phyai-models[demo]')}") from error
    figure, lanes = plt.subplots(len(stages), 1, figsize=(14, 1.7 * len(stages) + 0.8), squeeze=False)
    kinds = dict.fromkeys(kind_of(span.name) for spans in stages.values() for span in spans)
    colours = {kind: f"C{i}" for i, kind in enumerate(kinds)}
    for axis, (name, spans) in zip(lanes[:, 0], stages.items(), strict=True):
        _lane(axis, name, spans, colours, notes.get(name, ""))
    handles = [Patch(color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="upper right", ncols=len(colours), fontsize=8, frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error
    finally:
        plt.close(figure)


def _lane(axis: Any, name: str, spans: Sequence[Span], colours: Mapping[str, str], note: str) -> None:
    for kind, colour in colours.items():
        bars = [(span.begin / 1e3, span.length / 1e3) for span in spans if kind_of(span.name) == kind]
        axis.broken_barh(bars, (0, 1), facecolors=colour)
    busy = sum(span.length for span in spans) / 1e3
    end = max((span.begin + span.length for span in spans), default=0.0) / 1e3
    axis.set(yticks=[], xlim=(0, end or 1))
    said = f"{name}: {len(spans)} kernels, busy {busy:.2f} of {end:.2f} ms"
    axis.set_title(f"{said}; {note}" if note else said, loc="left", fontsize=9)
    axis.set_xlabel("ms", fontsize=8)


def kind_of(kernel: str) -> str:
    """What a kernel does, by its name.

    >>> kind_of("sm90_xmma_gemm_bf16bf16"), kind_of("cudnn_generated_fort_native_sdpa_sm90")
    ('product', 'attention')
    >>> kind_of("flashinfer::activation::act_and_mul_kernel"), kind_of("flashinfer::BatchPrefillWithPagedKVCacheKernel")
    ('activation', 'attention')
    """
    name = kernel.lower().replace("flashinfer", "")
    for kind, words in {
        "attention": ("sdpa", "attention", "flash", "prefill", "fmha"),
        "expert": ("expert", "pack_kv"),
        "product": ("gemm", "nvjet", "cutlass", "cublas", "addmm", "aten::mm", "splitk", "gemv", "linear", "conv"),
        "norm": ("norm",),
        "rope": ("rope", "rotary", "kv_write"),
        "activation": ("act_and_mul", "gelu", "silu", "activation"),
        "residual": ("gated_residual",),
        "copy": ("memcpy", "memset", "catarray", "direct_copy", "copy_kernel", "fillfunctor"),
    }.items():
        if any(word in name for word in words):
            return kind
    return "other"
