"""Compiling for a whole model at once: every kernel of every site, side by side.

A site compiles its own kernels when it is first decided, one site after the other. The dispatcher calls this before
that, once a model is loaded; the sites find their kernels ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from phyai.kernel import Awaited, Progress
from phyai.quant.weight import QuantizedWeight
from phyai.synthesize import torch_dtype

from phyai_backend_humming.convert import at_real_size, layer_config, tensors_of
from phyai_backend_humming.gemm import checked, rows_for
from phyai_backend_humming.library import LOCK, library
from phyai_backend_humming.schedules import key_of, specifications


def compile_ahead(waiting: Sequence[Awaited], progress: Progress) -> None:
    """Compile what the kernels of ``waiting`` will ask for, or find it in the library's cache on disk.

    Raises:
        CallError: a weight or a parameter that a kernel would refuse.
        RuntimeError: a kernel does not compile; the message says where the compiler's log is. The others are compiled.
    """
    with LOCK:
        wanted = {f"{device} {key_of(spec)}": (spec, device) for spec, device in _specifications(waiting)}
        kind = library().HummingKernel
        failed: list[BaseException] = []
        with ThreadPoolExecutor(max_workers=max(1, library().workers())) as pool:
            jobs = [pool.submit(kind.compile_many, [(kind, spec)], device) for spec, device in wanted.values()]
            for done, job in enumerate(as_completed(jobs), 1):
                if (error := job.exception()) is not None:
                    failed.append(error)
                progress(done, len(jobs))
    if failed:
        raise failed[0]


def _specifications(waiting: Sequence[Awaited]) -> Iterator[tuple[dict[str, Any], int]]:
    """What is to be compiled, and for which GPU. Equal layers ask for the same."""
    for one in waiting:
        weight = one.weights.get("weight")
        if isinstance(weight, QuantizedWeight) and any(name.startswith("final.") for name in weight.packed):
            continue  # a kernel was prepared for it already
        dtype = torch_dtype(str(one.facts["dtype.y"]))
        weight, bias = checked(one.weights, dtype)
        device = weight.scale.device.index or 0
        tensors, floats = tensors_of(weight, dtype)
        wide = layer_config(
            weight.scheme, *weight.shape, dtype, device, float_zero_point=floats, tensors=tensors, real=False
        )  # fmt: skip
        config = at_real_size(wide, *weight.shape, bias=bias is not None)
        invariant = one.kernel.numerics.batch_invariant
        for spec, _ in specifications(
            config, rows_for(one.facts, one.params, one.rows, invariant=invariant), invariant=invariant, device=device
        ):
            yield spec, device
