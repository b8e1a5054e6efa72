"""The plug-in: what this distribution offers. Importing it imports neither torch nor any kernel."""

from __future__ import annotations

from collections.abc import Iterable

from phyai.kernel import Kernel
from phyai.plugins import hookimpl

from phyai_backend_reference import reference_rows, torch_rows

PLUGIN_API = 1


@hookimpl
def phyai_kernels() -> Iterable[Kernel]:
    return (*reference_rows.KERNELS, *torch_rows.KERNELS)
