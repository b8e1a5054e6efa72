"""One pass of a model as a flat list of calls, without call sites: what a hand-written script would launch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai.composite import is_decomposition
from phyai.dispatch import Dispatcher, Site
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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

    def play(self, each: Callable[[Callable[[], Any]], Any] | None = None) -> None:
        """Make the calls again: :meth:`script`, run once."""
        self.script(each)()

    def script(self, each: Callable[[Callable[[], Any]], Any] | None = None) -> Callable[[], None]:
        """The calls as a function that makes them one after another, ``t3 = f3(t2, c1)``, and nothing else.

        Results go where they went, what was written into buffers is written there again, and a result is let go of
        after its last use, as a model's is. ``each``, when given, is handed every call and returns what it returns.
        """
        last: dict[int, int] = {}
        for number, call in enumerate(self.calls):
            last.update(dict.fromkeys(map(id, _tensors((call.args, call.kwargs, call.results))), number))
        writer = _Writer(each)
        for number, call in enumerate(self.calls):
            writer.write(call)
            writer.forget(
                tensor for tensor in _tensors((call.args, call.kwargs, call.results)) if last[id(tensor)] == number
            )
        return writer.function()


class _Writer:
    """Writes the body of a function, and keeps what its names stand for."""

    def __init__(self, each: Callable[..., Any] | None) -> None:
        self._each = each
        self._scope: dict[str, Any] = {"each": each, "partial": functools.partial}
        self._names: dict[int, str] = {}  # of tensors, by identity
        self._lines: list[str] = []

    def write(self, call: Call) -> None:
        given = ", ".join([*map(self._word, call.args), *(f"{n}={self._word(v)}" for n, v in call.kwargs.items())])
        run = self._constant(call.run, "f")
        made = f"{run}({given})" if self._each is None else f"each(partial({run}, {given}))"
        results = call.results
        if isinstance(results, torch.Tensor):
            made = f"{self._variable(results)} = {made}"
        elif isinstance(results, list | tuple) and results:
            names = (self._variable(r) if isinstance(r, torch.Tensor) else "_" for r in results)
            made = f"{', '.join(names)}, = {made}"
        self._lines.append(made)

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        for name in sorted({self._names[id(t)] for t in tensors if id(t) in self._names}):
            if name.startswith("t"):
                self._lines.append(f"del {name}")

    def function(self) -> Callable[[], None]:
        source = "\n    ".join(["def script():", *(self._lines or ["pass"])])
        exec(compile(source, "<script of a tape>", "exec"), self._scope)
        script: Callable[[], None] = self._scope["script"]
        return script

    def _variable(self, tensor: torch.Tensor) -> str:
        """The name of a result; what was written in place keeps its own."""
        name = self._names.get(id(tensor), "c")
        if name.startswith("c"):
            name = self._names[id(tensor)] = f"t{len(self._lines)}_{len(self._names)}"
        return name

    def _constant(self, value: Any, kind: str = "c") -> str:
        name = f"{kind}{len(self._scope)}"
        self._scope[name] = value
        return name

    def _word(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._names:
                self._names[id(value)] = self._constant(value)
            return self._names[id(value)]
        if type(value) is list or type(value) is tuple:
            words = "".join(f"{self._word(v)}, " for v in value)
            return f"[{words}]" if type(value) is list else f"({words})"
        if type(value) is dict:
            return "{" + "".join(f"{name!r}: {self._word(v)}, " for name, v in value.items()) + "}"
        return repr(value) if value is None or type(value) in (bool, int) else self._constant(value)


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
