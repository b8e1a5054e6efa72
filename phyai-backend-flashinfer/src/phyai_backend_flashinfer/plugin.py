"""The plug-in: what this distribution offers. Importing it imports neither torch nor flashinfer."""

from __future__ import annotations

from collections.abc import Iterable

from phyai.environment import Library
from phyai.kernel import Kernel
from phyai.plugins import hookimpl

from phyai_backend_flashinfer.rows import KERNELS

PLUGIN_API = 1


@hookimpl
def phyai_kernels() -> Iterable[Kernel]:
    return KERNELS


@hookimpl
def phyai_libraries() -> Iterable[Library]:
    return (Library("flashinfer", ("flashinfer-python",), "0.7.4"),)
