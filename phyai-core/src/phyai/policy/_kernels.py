"""What a policy says of kernels, against the catalog: ids, globs, params."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from phyai.catalog import Catalog
from phyai.install import install
from phyai.kernel import Kernel, Param
from phyai.policy import _earlier
from phyai.policy._model import Location, is_glob, kernel_matches
from phyai.policy._node import Node
from phyai.policy._problems import Report
from phyai.spelling import did_you_mean, nearest

_EXAMPLE = "for example torch.gemm.bf16, or `torch.*` for all of torch's"
_ID = re.compile(r"[\w*?\[\]!-]+(\.[\w*?\[\]!-]+)+")


class Kernels:
    """The kernels of a catalog, as the patterns of a policy name them."""

    def __init__(self, catalog: Catalog, report: Report, file: str) -> None:
        self._catalog = catalog
        self._report = report
        self._file = file
        self._ids = [kernel.id for kernel in catalog.kernels]
        self._backends = {kernel.backend for kernel in catalog.kernels}
        self._named: dict[str, tuple[Kernel, ...]] = {}
        self._nearest = lru_cache(maxsize=1024)(lambda pattern: did_you_mean(pattern, self._ids, cutoff=0.7))

    def named_by(self, pattern: str) -> tuple[Kernel, ...]:
        """The catalog's kernels that a canonical id or glob names."""
        found = self._named.get(pattern)
        if found is None:
            found = tuple(kernel for kernel in self._catalog.kernels if kernel_matches(pattern, kernel.id))
            self._named[pattern] = found
        return found

    def read(self, node: Node, what: str, *, strict: bool) -> tuple[str, ...]:
        """The canonical patterns of a string or list. ``strict`` makes an unknown id an error, not a warning."""
        items = node.value if node.is_list else (node,)
        if not items:
            self._error(node, f"`{what}` names no kernel", "`phyai kernels` lists them")
        patterns = [pattern for item in items if (pattern := self._pattern(item, what, strict)) is not None]
        return tuple(dict.fromkeys(patterns))

    def _pattern(self, node: Node, what: str, strict: bool) -> str | None:
        if not isinstance(node.value, str):
            self._error(node, f"`{what}` takes ids of kernels, <backend>.<op>[.<variant>]", _EXAMPLE)
            return None
        if _ID.fullmatch(node.value) is None:
            known = did_you_mean(node.value, self._ids)
            everything = f"write `{node.value}.*` for all its kernels" if node.value in self._backends else None
            self._error(node, "no id of a kernel, <backend>.<op>[.<variant>]", known or everything or _EXAMPLE)
            return None
        pattern = self._catalog.canonical_id(node.value)
        renamed = _earlier.KERNELS.get(pattern)
        if renamed is not None and not self.named_by(pattern) and self.named_by(renamed):
            return renamed
        if not self.named_by(pattern):
            self._unknown(node, pattern, strict)
        return pattern

    def _unknown(self, node: Node, pattern: str, strict: bool) -> None:
        backend = pattern.split(".", 1)[0]
        refused = self._catalog.refused.get(pattern)
        if refused:
            self._error(node, f"no kernel may be called so: {refused}")
        elif backend in self._backends or (is_glob(backend) and strict):
            what = "no kernel matches this" if is_glob(pattern) else f"backend `{backend}` has no such kernel"
            hint = self._near(pattern) or "`phyai kernels` lists those that are known"
            (self._report.error if strict else self._report.warn)(self._at(node), what, node.text, hint)
        elif is_glob(backend):
            self._report.warn(self._at(node), "no kernel matches this", node.text, "`phyai kernels` lists them")
        else:
            self._report.warn(self._at(node), *self._absent(backend, node.text))

    def check_backend(self, node: Node) -> None:
        """Warn where a node names a backend that is not there."""
        if node.text not in self._backends:
            self._report.warn(self._at(node), *self._absent(node.text, node.text))

    def _near(self, pattern: str) -> str | None:
        """What was probably meant: a kernel of the same backend and op, where these are right; else that of the op
        whose name is nearest."""
        backend, op, *variant = pattern.split(".")
        of_op = [id for id in self._ids if id.split(".")[:2] == [backend, op]]
        if of_op:
            return did_you_mean(pattern, of_op)
        near = nearest(op, {kernel.op for kernel in self.named_by(f"{backend}.*")})
        meant = ".".join((backend, near, *variant)) if near is not None else ""
        return f"did you mean `{meant}`?" if self.named_by(meant) else self._nearest(pattern)

    def _absent(self, backend: str, text: str) -> tuple[str, str, str]:
        """Message, offending text and advice for a backend that is not there."""
        distribution = _earlier.distribution(backend)
        for status in self._catalog.plugins:
            if status.distribution == distribution and status.reason:
                return f"backend `{backend}` cannot be used: {status.reason}", text, status.advice
        replaced = _earlier.REPLACED_BACKENDS.get(backend)
        if replaced:
            return f"backend `{backend}` is one of the earlier system", text, f"the kernels here are `{replaced}.*`"
        near = None if backend in _earlier.DISTRIBUTIONS else did_you_mean(backend, self._backends, cutoff=0.75)
        advice = install(distribution)
        return f"backend `{backend}` is not installed", text, f"{advice}, or {near}" if near else advice

    def params(self, node: Node, patterns: tuple[str, ...], ops: frozenset[str] | None) -> dict[str, Any]:
        """The validated ``params`` of a rule: each is one that a kernel the rule is for declares."""
        if not node.is_map:
            self._error(node, "`params` is a mapping of a kernel's parameters", "`phyai kernels ID` shows them")
            return {}
        named = [self.named_by(pattern) for pattern in patterns or ("*",)]
        kernels = [kernel for some in named for kernel in some if ops is None or kernel.op in ops]
        known: dict[str, list[Param]] = {}
        for kernel in kernels:
            for param in kernel.params:
                known.setdefault(param.name, []).append(param)
        given: dict[str, Any] = {}
        for name, child in node.value.items():
            at = Location(self._file, *node.keys[name])
            if name in known:
                self._value(child, name, known[name])
                given[name] = child.plain()
            elif name in _earlier.ABSENT_PARAMS:
                self._report.warn(at, "a parameter of the earlier system; it is left out", name)
            elif not all(named):  # it may be for a kernel that is not installed here
                given[name] = child.plain()
            else:
                of = kernels[0].id if len(kernels) == 1 else "kernels that this rule is for"
                hint = did_you_mean(name, known) or (f"it has {', '.join(f'`{k}`' for k in known)}" if known else None)
                self._report.error(at, f"{of}: no such parameter", name, hint or "it has none")
        return given

    def _value(self, node: Node, name: str, params: list[Param]) -> None:
        if any(param.values is None for param in params):
            return
        allowed = [value for param in params for value in param.values or ()]
        if node.plain() not in allowed:
            self._error(node, f"`{name}` does not take this", f"one of {', '.join(f'`{v}`' for v in allowed)}")

    def _at(self, node: Node) -> Location:
        return Location(self._file, node.line, node.column)

    def _error(self, node: Node, message: str, suggestion: str | None = None) -> None:
        self._report.error(self._at(node), message, node.shown(), suggestion)
