"""Compiling ahead: what sites would wait for one after the other when they are first called, done side by side."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phyai.bars import bar
from phyai.composite import is_decomposition, part_facts, part_weights
from phyai.dispatch.guard import PrepareFacts
from phyai.dispatch.layouts import DEFAULT_ROWS
from phyai.dispatch.memo import Cells, open_facts
from phyai.errors import NoKernelError, PhyAIError
from phyai.facts import Facts
from phyai.kernel import Awaited, CompileFn, Progress
from phyai.op import Op
from phyai.predicates import FALSE, Partition

if TYPE_CHECKING:
    from phyai.catalog import Catalog
    from phyai.decision import Decision
    from phyai.dispatch.dispatcher import Dispatcher
    from phyai.dispatch.site import Site

_log = logging.getLogger("phyai.dispatch")


def compile_ahead(dispatcher: Dispatcher, progress: Progress | None = None) -> None:
    """See :meth:`phyai.dispatch.Dispatcher.compile_ahead`, which holds the lock."""
    waiting: dict[Hashable, tuple[CompileFn, list[Awaited]]] = {}
    for one in awaited(dispatcher):
        compile_ = one.kernel.load_compile()
        if compile_ is not None:
            waiting.setdefault(one.kernel.compile, (compile_, []))[1].append(one)
    for compile_, calls in waiting.values():
        backend = calls[0].kernel.backend
        with contextlib.nullcontext(progress) if progress else bar(f"compiling {backend} kernels") as report:
            try:
                compile_(calls, report)
            except PhyAIError:
                raise
            except Exception as error:  # `prepare` meets it again, and the decision says so
                _log.warning("%s: compiling ahead failed: %s: %s", backend, type(error).__name__, error)


def awaited(dispatcher: Dispatcher) -> Iterator[Awaited]:
    """Every ``prepare`` of a kernel with ``compile`` that a site has ahead of it, as far as its number of rows decides.

    Of a site that leaves more open than that, or that has no kernel for some number of rows, nothing is known yet.
    """
    for site in dispatcher.sites:
        if not _may_compile(site.op, site.static, dispatcher.catalog):
            continue
        seen: set[Hashable] = set()
        for facts in _calls(site):
            if site.memo.find(facts) is not None:
                continue
            try:
                decision = dispatcher.node(site, facts).decision
            except NoKernelError:
                continue  # the call itself says so, if it ever comes
            for one in _of(decision, site.op, site.static, site.weights, site.lowering.rows, dispatcher.catalog):
                given = (one.kernel.id, repr(one.params), frozenset(dict(one.facts).items()))
                key = (*given, *map(id, one.weights.values()))
                if key not in seen:
                    seen.add(key)
                    yield one


def _of(
    decision: Decision,
    op: Op,
    static: Facts,
    weights: Mapping[str, Any],
    rows: tuple[int, int] | None,
    catalog: Catalog,
) -> Iterator[Awaited]:
    """What a decision has to be prepared for it: its own kernel, or those of its parts."""
    kernel = decision.kernel
    if kernel is None:
        return
    if kernel.compile is not None:
        facts = PrepareFacts(decision.facts, kernel, open_facts(op, static))
        yield Awaited(kernel, facts, weights, decision.params, rows)
    elif is_decomposition(kernel):
        for part in op.parts:
            inner = catalog.op(part.op)
            own = part_facts(op, part, inner, static)
            yield from _of(decision.parts[part.name], inner, own, part_weights(part, weights), rows, catalog)


def _may_compile(op: Op, static: Facts, catalog: Catalog) -> bool:
    """Whether what is known of a site leaves a kernel with ``compile`` for it, or for a part of it."""
    kernels = (kernel for kernel in catalog.kernels_of(op.name) if kernel.compile is not None)
    absent = _Absent(static, open_facts(op, static))
    if any(kernel.when.given(static, absent=absent) != FALSE for kernel in kernels):
        return True
    inner = ((part, catalog.op(part.op)) for part in op.parts)
    return any(_may_compile(part_op, part_facts(op, part, part_op, static), catalog) for part, part_op in inner)


class _Absent:
    """The facts that a site's calls can never have."""

    def __init__(self, static: Facts, still_open: frozenset[str]) -> None:
        self._static, self._open = static, still_open

    def __contains__(self, name: object) -> bool:
        return name not in self._static and name not in self._open


def _calls(site: Site) -> Iterator[Facts]:
    """A call for every set of numbers of rows that decisions tell apart; none where a site leaves more open that they
    tell apart."""
    dims = sorted(name.removeprefix("shape.") for name in site.open_dims)
    if len(dims) > 1:
        dims = [dim for dim in dims if site.memo.cells.tells_apart(dim)]
    if not dims:
        yield site.static
    elif len(dims) == 1:
        for size in sorted(_samples(site.op, site.memo.cells, dims[0], site.lowering.rows or DEFAULT_ROWS)):
            yield site.facts_of({dims[0]: size})


def _samples(op: Op, cells: Cells, dim: str, rows: tuple[int, int]) -> set[int]:
    found = set(Partition.of(f"shape.{dim}", cells.literals).samples(*rows))
    for part, part_op, own in cells.parts:
        for inner in part_op.dims:
            if part.dims.get(inner.name, inner.name) == dim:
                found |= _samples(part_op, own, inner.name, rows)
    return found
