"""A whole run: the kernels, quantization formats and plug-ins of one backend."""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from phyai.catalog import Catalog
from phyai.composite import is_decomposition
from phyai.environment import Environment
from phyai.errors import PhyAIError
from phyai.install import install
from phyai.kernel import Kernel
from phyai.plugins.records import PluginStatus
from phyai.testing.case import Case
from phyai.testing.checks import CHECKS, Check
from phyai.testing.declaration import examine_declaration
from phyai.testing.kit import CALLS, examine, examine_call
from phyai.testing.packers import examine_format
from phyai.testing.report import Report, SubjectReport
from phyai.testing.subject import Subject, about

Progress = Callable[[float, float], None]
#: Tensor elements of one call: what a CPU does at once, and what a GPU does.
ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 22}
#: The check of a quantization format, and that of a plug-in's declaration; the others are kernels'.
PACKER, DECLARATION = "packer", "declaration"


def conform(
    backend: str,
    catalog: Catalog,
    environment: Environment,
    *,
    kernels: Sequence[str] | None = None,
    checks: Sequence[str] | None = None,
    seconds: float = 60.0,
    calls: int = CALLS,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
    keep: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Test ``backend`` (the first part of its kernels' ids, or its plug-in's or distribution's name) on a machine.

    ``kernels`` are ids or globs, ``checks`` names. The time is shared out evenly. After ``seconds`` what is left gets
    its plainest call alone, once per check. ``keep`` is given what is known so far, after everything that was tested.

    Raises:
        PhyAIError: no such backend, kernel or check; or the reference, hypothesis or torch is not installed.
    """
    require_tools()
    begun = time.monotonic()
    chosen = kernels_of(backend, catalog, kernels)
    wanted = checks_named(checks)
    formats = formats_of(backend, catalog) if not kernels and (not checks or PACKER in checks) else []
    plugins = plugins_of(chosen, catalog) if not checks or DECLARATION in checks else []
    if not chosen and not formats:
        raise PhyAIError(
            f"no kernel and no quantization format of {backend!r} is installed; `phyai kernels` lists them"
        )
    todo: list[Any] = [*plugins, *formats, *(chosen if wanted else [])]
    names = tuple(getattr(record, "id", None) or record.name for record in todo)
    found: list[SubjectReport] = []

    def report() -> Report:
        device, taken = str(environment.device), time.monotonic() - begun
        return Report(backend, device, seed, tuple(found), taken, names[len(found) :])

    for number, record in enumerate(todo):
        keep(report())
        progress(number, len(todo))
        left = max(0.0, seconds - (time.monotonic() - begun))
        found.append(
            examine_record(
                record, backend, catalog, environment, seconds=left / (len(todo) - number), seed=seed, calls=calls,
                checks=wanted, stop=begun + seconds,
            )
        )  # fmt: skip
    progress(len(todo), len(todo))
    keep(report())
    return report()


def examine_record(
    record: Any, backend: str, catalog: Catalog, environment: Environment, *, seconds: float, seed: int = 0,
    calls: int = CALLS, checks: Sequence[Check] = CHECKS, stop: float = math.inf,
) -> SubjectReport:  # fmt: skip
    """Test a kernel, a quantization format or a plug-in; see :func:`phyai.testing.kit.examine`."""
    if isinstance(record, PluginStatus):
        return examine_declaration(record)
    if isinstance(record, Kernel):
        subject = subject_of(record, catalog, environment)
        return examine(subject, seconds=seconds, seed=seed, calls=calls, checks=checks, backend=backend, stop=stop)
    return examine_format(record, catalog, environment, seconds=seconds, seed=seed, calls=calls)


def replay(
    backend: str,
    call: Any,
    catalog: Catalog,
    environment: Environment,
    *,
    kernels: Sequence[str] | None = None,
    checks: Sequence[str] | None = None,
) -> Report:
    """One call, as a failure prints it.

    Raises:
        PhyAIError: more or less than one kernel is named, or the call is none that it claims.
    """
    require_tools()
    begun = time.monotonic()
    chosen = kernels_of(backend, catalog, kernels)
    if len(chosen) != 1:
        raise PhyAIError(f"--call takes one kernel; name it with --kernel: {', '.join(k.id for k in chosen)}")
    subject = subject_of(chosen[0], catalog, environment)
    found = examine_call(subject, Case.from_json(subject.op, call), checks_named(checks), backend)
    return Report(backend, str(environment.device), 0, (found,), time.monotonic() - begun)


def subject_of(kernel: Kernel, catalog: Catalog, environment: Environment) -> Subject:
    return Subject(kernel, about(kernel, catalog), environment, ELEMENTS.get(environment.device.type, ELEMENTS["cpu"]))


def kernels_of(backend: str, catalog: Catalog, patterns: Sequence[str] | None = None) -> list[Kernel]:
    """The kernels of a backend; where none has that name, those of the plug-in or distribution that has.

    Raises:
        PhyAIError: a pattern matches none of them.
    """
    own = [kernel for kernel in catalog.kernels if kernel.backend == backend]
    if not own:
        for kernel in catalog.kernels:
            owner = catalog.owner(kernel.id)
            if not is_decomposition(kernel) and owner is not None and backend in (owner.name, owner.distribution):
                own.append(kernel)
    if not patterns:
        return own
    chosen: list[Kernel] = []
    for pattern in map(catalog.canonical_id, patterns):
        matched = [kernel for kernel in own if fnmatch.fnmatchcase(kernel.id, pattern)]
        if not matched:
            raise PhyAIError(f"no kernel of {backend!r} matches {pattern!r}; it has: {_listed(k.id for k in own)}")
        chosen += [kernel for kernel in matched if kernel not in chosen]
    return chosen


def formats_of(backend: str, catalog: Catalog) -> list[Any]:
    """The quantization formats of a backend."""
    return [f for f in catalog.quant_formats if getattr(f, "backend", None) == backend]


def plugins_of(kernels: Sequence[Kernel], catalog: Catalog) -> list[Any]:
    """The plug-ins that declare these kernels, as they were discovered."""
    owners = [catalog.owner(kernel.id) for kernel in kernels]
    return list(dict.fromkeys(owner for owner in owners if owner is not None))


def checks_named(names: Sequence[str] | None) -> tuple[Check, ...]:
    """The checks of kernels that are called so; all of them for None.

    Raises:
        PhyAIError: there is no such check.
    """
    if not names:
        return CHECKS
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known and name not in (PACKER, DECLARATION):
            raise PhyAIError(f"no check {name!r}; there are: {', '.join((*known, PACKER, DECLARATION))}")
    return tuple(known[name] for name in names if name in known)


def require_tools() -> None:
    """Say at once what the kit needs and does not find.

    Raises:
        PhyAIError: torch or hypothesis is not installed.
    """
    from importlib.util import find_spec

    for module, advice in (("hypothesis", install("phyai-core[testing]")), ("torch", "pip install torch")):
        if find_spec(module) is None:
            raise PhyAIError(f"conformance needs {module}, which is not installed: {advice}")


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
