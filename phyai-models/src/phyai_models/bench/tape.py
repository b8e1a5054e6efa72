"""One pass of a model as a flat list of calls, without call sites: what a hand-written script would launch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai.composite import is_decomposition
from phyai.dispatch import Dispatcher, Site
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


@attrs.frozen(eq=False)
class Call:
    """A call as it was made: a kernel's own ``run``, or a torch operator that the model called between two of them
    (``site`` is None). ``name`` is the kernel's id or the operator's name."""

    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: Any
    name: str
    site: Site | None = None


class Tape:
    """Calls in their order, and how results flow between them."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = tuple(calls)
        last: dict[int, int] = {}
        for number, call in enumerate(self.calls):
            last.update(dict.fromkeys(map(id, _tensors((call.args, call.kwargs, call.results))), number))
        self._dead: list[list[int]] = [[] for _ in self.calls]
        for tensor, number in last.items():
            self._dead[number].append(tensor)

    def play(self, each: Callable[[Callable[[], Any]], Any] = lambda call: call()) -> None:
        """Make the calls again. Results go where they went; a result is let go of after its last use, as a model's is.
        What was written into buffers is written there again. ``each`` is given every call, and returns what it returns.
        """
        now: dict[int, torch.Tensor] = {}
        for call, dead in zip(self.calls, self._dead, strict=True):
            args, kwargs = tree_map_only(torch.Tensor, lambda t: now.get(id(t), t), (call.args, dict(call.kwargs)))
            results = each(functools.partial(call.run, *args, **kwargs))
            now.update(zip(map(id, _tensors(call.results)), _tensors(results), strict=True))
            for tensor in dead:
                now.pop(tensor, None)


def record_tape(work: Callable[[], object], dispatcher: Dispatcher) -> Tape:
    """Run ``work``, whose calls must have been decided, and note every call that launches something.

    A kernel counts as one call, whatever it does inside; of a composite that runs as a chain, its parts count.
    """
    calls: list[Call] = []
    with _Operators(calls) as operators, _noted(dispatcher, calls, operators):
        work()
    return Tape(calls)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the torch operators that are called outside of kernels."""

    def __init__(self, calls: list[Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = calls
        self.inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if not self.inside:
            self.calls.append(Call(func, tuple(args), kwargs or {}, results, str(func)))
        return results


@contextlib.contextmanager
def _noted(dispatcher: Dispatcher, calls: list[Call], operators: _Operators) -> Iterator[None]:
    runs = {site: site.run for site in dispatcher.sites}

    def noting(site: Site, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*inputs: Any, out: Any = None, state: Any = None) -> Any:
            kernel = site.chosen(inputs)
            if operators.inside or is_decomposition(kernel):
                return run(*inputs, out=out, state=state)
            operators.inside = True
            try:
                results = run(*inputs, out=out, state=state)
            finally:
                operators.inside = False
            named = {"out": out, "state": state}
            calls.append(Call(site.prepared(inputs).run, inputs, named, results, kernel.id, site))
            return results

        return call

    for site, run in runs.items():
        site.run = noting(site, run)
    try:
        yield
    finally:
        for site, run in runs.items():
            site.run = run


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
