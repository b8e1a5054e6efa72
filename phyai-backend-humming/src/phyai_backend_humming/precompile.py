"""Compiling for a whole model at once: every kernel of every site, side by side, with progress.

A site compiles its own kernels when it is first decided, one site after the other. Called before that, this compiles
them all in parallel; the sites find them ready.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import attrs
from phyai.composite import part_facts
from phyai.dispatch import Dispatcher
from phyai.facts import Facts
from phyai.op import Op
from phyai.quant.weight import QuantizedWeight
from phyai.resolver import resolve

from phyai_backend_humming.rows import LAYOUT

Progress = Callable[[int, int], None]


@attrs.frozen(eq=False)
class Product:
    """One ``gemm`` of a model with a weight in Humming's layout: its static facts, and its weights."""

    facts: Facts
    weight: QuantizedWeight
    bias: Any = None


def compile_ahead(dispatcher: Dispatcher, *, progress: Progress | None = None) -> int:
    """Compile for every site of ``dispatcher`` that a Humming kernel will serve; the number of kernels compiled for.

    ``progress`` is called with the kernels that are ready and their total; None shows a bar on a terminal.

    Raises:
        NoKernelError: a site can have no kernel.
        RuntimeError: a kernel does not compile; the message says where the compiler's log is.
    """
    from phyai_backend_humming.library import LOCK, library
    from phyai_backend_humming.schedules import key_of

    with LOCK:
        wanted = {
            f"{device} {key_of(spec)}": (spec, device)
            for product in products(dispatcher)
            for spec, device in _specifications(dispatcher, product)
        }
        kind = library().HummingKernel
        with ThreadPoolExecutor(max_workers=max(1, library().workers())) as pool, _reporting(progress) as report:
            jobs = [pool.submit(kind.compile_many, [(kind, spec)], device) for spec, device in wanted.values()]
            for done, job in enumerate(as_completed(jobs), 1):
                job.result()
                report(done, len(jobs))
    return len(wanted)


def products(dispatcher: Dispatcher) -> Iterator[Product]:
    """The products of all sites, those inside composite ops too, whose weight is packed and not arranged yet."""
    for site in dispatcher.sites:
        yield from _products(site.op, site.static, site.weights, dispatcher)


def _products(op: Op, facts: Facts, weights: Mapping[str, Any], dispatcher: Dispatcher) -> Iterator[Product]:
    weight = weights.get("weight")
    if op.name == "gemm" and isinstance(weight, QuantizedWeight) and weight.layout == LAYOUT:
        if "weight" in weight.packed:
            yield Product(facts, weight, weights.get("bias"))
        return
    for part in op.parts:
        inner = dispatcher.catalog.op(part.op)
        own = {name: weights.get(outer) for name, outer in part.weights.items()}
        yield from _products(inner, part_facts(op, part, inner, facts), own, dispatcher)


def _specifications(dispatcher: Dispatcher, product: Product) -> Iterator[tuple[dict[str, Any], int]]:
    """What the kernels compile that will serve a product, by the decisions for the numbers of rows it may have."""
    from phyai.synthesize import torch_dtype

    from phyai_backend_humming.convert import at_real_size, layer_config, tensors_of
    from phyai_backend_humming.gemm import rows_for
    from phyai_backend_humming.schedules import DEFAULT_ROWS, specifications

    weight, facts = product.weight, product.facts
    dtype, device = torch_dtype(str(facts["dtype.y"])), weight.scale.device.index or 0
    tensors, floats = tensors_of(weight, dtype)
    wide = layer_config(
        weight.scheme, *weight.shape, dtype, device, float_zero_point=floats, tensors=tensors, real=False
    )  # fmt: skip
    config = at_real_size(wide, *weight.shape, bias=product.bias is not None)
    chosen = set()
    for m in (facts["shape.M"],) if "shape.M" in facts else DEFAULT_ROWS:
        call = facts.replace({"shape.M": m})
        decision = resolve(call, dispatcher.catalog, dispatcher.policy, dispatcher.environment)
        kernel = decision.kernel
        if kernel is not None and kernel.backend == "humming":
            invariant = kernel.numerics.batch_invariant
            chosen.add((rows_for(facts, decision.params, invariant=invariant), invariant))
    for rows, invariant in sorted(chosen):
        for spec, _ in specifications(config, rows, invariant=invariant, device=device):
            yield spec, device


@contextlib.contextmanager
def _reporting(progress: Progress | None) -> Iterator[Progress]:
    """``progress``, or a bar."""
    if progress is not None:
        yield progress
        return
    from rich.progress import Progress as Bars

    with Bars(transient=True) as bars:
        task = bars.add_task("compiling Humming kernels", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
