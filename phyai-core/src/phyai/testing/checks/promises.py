"""What a kernel declares of its numbers: the same bits again, and rows that do not depend on their neighbours."""

from __future__ import annotations

import itertools
from typing import Any

import attrs

from phyai.composite import is_decomposition
from phyai.dims import dim_names
from phyai.testing.bench import Call
from phyai.testing.case import Case
from phyai.testing.checks.check import Check
from phyai.testing.memory import same_bits
from phyai.testing.subject import Bound, Finding, NotApplicable, Subject, result_names, results

_REPEATS = 3
#: Rows computed alone and compared: a few of them show what all would.
_ROWS = 4


def reproducible(subject: Subject, case: Case) -> None:
    """The same call gives the same bits: at one site, and at a new one."""
    call = subject.call(case)
    bound = subject.site(call)
    first = _keep(call, bound)
    for number in range(_REPEATS):
        where = bound if number else subject.site(call)
        _same(call, first, _keep(call, where), "is declared reproducible, but the same call again gives other bits in")


def batch_invariant(subject: Subject, case: Case) -> None:
    """A row alone gives the bits that it has in the batch."""
    case = attrs.evolve(case, lead=None)
    call = subject.call(case)
    dim, rows, sliced = _row_dim(subject, call)
    whole = call.copy()
    bound = subject.site(call)
    together = [t.clone() for t in results(whole, bound.run(whole))]
    alone = call.copy()
    cuts = sorted({0, 1, rows // 2, rows - 1, rows})
    pieces: list[list[Any]] = []
    for start, end in itertools.pairwise(cuts):
        piece = _rows_of(alone, sliced, start, end, dim)
        found = results(piece, bound.run(piece))
        pieces.append([t.clone() for t in found])
    for index, name in enumerate(result_names(call)):
        if name in call.mutated and name not in sliced:
            apart = [alone.inputs[name]]
        elif _shared(call, name, rows):
            apart = [piece[index] for piece in pieces]
        else:
            apart = [_cat([piece[index] for piece in pieces])]
        if not all(same_bits(found, together[index]) for found in apart):
            raise Finding(
                f"is declared batch invariant, but {name} of {rows} rows, cut at {cuts[1:-1]} and computed apart, has "
                f"other bits than computed together"
            )


def _row_dim(subject: Subject, call: Call) -> tuple[str, int, frozenset[str]]:
    """The dimension whose entries are independent, its size, and the tensors that have it first."""
    op = subject.op
    if op.metadata:
        raise NotApplicable("the rows of a planned call are not calls of their own")
    first = next((t for t in op.inputs if call.inputs[t.name] is not None and t.dims), None)
    dims = dim_names(first) if first is not None else ()
    dynamic = {d.name for d in op.dims if d.dynamic}
    if first is None or not dims or dims[0] not in dynamic or not first.dims[0].removeprefix("...").isidentifier():
        raise NotApplicable("the op has no rows")
    dim, rows = dims[0], call.case.dims[dims[0]]
    if rows < 2:
        raise NotApplicable("the call has one row")
    sliced = set()
    for tensor in op.inputs:
        value = call.inputs[tensor.name]
        if value is None:
            continue
        names = dim_names(tensor)
        leading = names[0] if names else None
        if leading in dynamic and call.case.dims[leading] == rows and value.shape[0] == rows:
            sliced.add(tensor.name)
        elif leading in dynamic and call.case.dims[leading] != 1:
            raise NotApplicable(f"{tensor.name} has rows of its own")
    if call.inputs[first.name].shape[0] != rows:
        raise NotApplicable("the call's rows are not its first dimension")
    return dim, rows, frozenset(sliced)


def _shared(call: Call, name: str, rows: int) -> bool:
    """Whether a result belongs to all rows at once (a gate of one condition), so that every piece gives all of it."""
    names = dim_names(next(t for t in call.op.tensors if t.name == name))
    return bool(names) and names[0] in _open(call) and call.case.dims[names[0]] != rows


def _rows_of(call: Call, sliced: frozenset[str], start: int, end: int, dim: str) -> Call:
    inputs = {name: t[start:end] if name in sliced and t is not None else t for name, t in call.inputs.items()}
    dims = {n: end - start if n == dim or (size == call.case.dims[dim] and n in _open(call)) else size
            for n, size in call.case.dims.items()}  # fmt: skip
    return attrs.evolve(call, inputs=inputs, case=attrs.evolve(call.case, dims=dims))


def _open(call: Call) -> frozenset[str]:
    return frozenset(d.name for d in call.op.dims if d.dynamic)


def _cat(pieces: list[Any]) -> Any:
    import torch

    if pieces[0].element_size() == 1 and pieces[0].is_floating_point():  # torch does not join 8-bit floats everywhere
        return torch.cat([p.view(torch.uint8) for p in pieces]).view(pieces[0].dtype)
    return torch.cat(pieces)


def _keep(call: Call, bound: Bound) -> list[Any]:
    """The results of one run, copied; the call itself stays as it was."""
    fresh = call.copy()
    return [t.clone() for t in results(fresh, bound.run(fresh))]


def _same(call: Call, one: list[Any], other: list[Any], what: str) -> None:
    for name, a, b in zip(result_names(call), one, other, strict=True):
        if not same_bits(a, b):
            raise Finding(f"{what} {name}")


def _not_reproducible(subject: Subject) -> str | None:
    if is_decomposition(subject.kernel):
        return "follows from the kernels of its parts"
    return None if subject.kernel.numerics.reproducible else "not declared reproducible"


def _not_invariant(subject: Subject) -> str | None:
    if is_decomposition(subject.kernel):
        return "follows from the kernels of its parts"
    return None if subject.kernel.numerics.batch_invariant else "not declared batch invariant"


REPRODUCIBLE = Check("reproducible", "gives the same bits again", reproducible, _not_reproducible)
BATCH_INVARIANT = Check("batch_invariant", "computes a row alone as in a batch", batch_invariant, _not_invariant)
