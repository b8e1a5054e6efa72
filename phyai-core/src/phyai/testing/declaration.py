"""Declaring imports nothing heavy: a plug-in's module is imported, and its hooks called, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

from phyai.plugins.records import PluginStatus
from phyai.testing.report import CheckReport, Outcome, SubjectReport

#: Modules that take long to import, or touch a device when they are.
HEAVY = (
    "torch", "triton", "cupy", "jax", "tensorflow", "numba", "numpy", "scipy", "pandas", "transformers", "flashinfer",
    "cutlass", "tilelang", "onnxruntime", "tensorrt", "deep_gemm", "humming", "vllm", "sglang", "xformers",
)  # fmt: skip
_SECONDS = 120.0

_PROGRAM = """
import json, sys
from importlib import import_module
before = set(sys.modules)
module = import_module(sys.argv[1])
for name in sys.argv[2].split(","):
    hook = getattr(module, name, None)
    if hook is not None:
        list(hook())
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def examine_declaration(status: PluginStatus) -> SubjectReport:
    """Whether a plug-in declares what it has without importing anything heavy."""
    name = f"{status.name} ({status.distribution})" if status.distribution else status.name
    value = _entry_point(status)
    if value is None:
        reason = "not installed as an entry point, so there is nothing to import afresh"
        return SubjectReport(name, "plug-in", (CheckReport("declaration", Outcome.SKIPPED, reason=reason),), reason)
    return SubjectReport(name, "plug-in", (light_import(value.partition(":")[0]),))


def light_import(module: str) -> CheckReport:
    """Import ``module`` and call its hooks in a process of its own."""
    from phyai.plugins.hooks import RECORD_HOOKS

    command = [sys.executable, "-c", _PROGRAM, module, ",".join(RECORD_HOOKS.values())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return CheckReport("declaration", Outcome.FAILED, 1, f"importing {module} takes more than {_SECONDS:g} s")
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return CheckReport("declaration", Outcome.FAILED, 1, f"importing {module} fails: {last[0]}")
    imported = json.loads(done.stdout.strip().splitlines()[-1])
    heavy = [name for name in imported if name in HEAVY]
    if heavy:
        reason = f"importing {module} imports {', '.join(heavy)}; import them where a kernel is prepared"
        return CheckReport("declaration", Outcome.FAILED, 1, reason)
    return CheckReport("declaration", Outcome.PASSED, 1)


def _entry_point(status: PluginStatus) -> str | None:
    """``module`` or ``module:attribute`` of an installed plug-in."""
    for entry in metadata.entry_points(group=status.group):
        if entry.name == status.name and (entry.dist is None or entry.dist.name == status.distribution):
            return entry.value
    return None
