"""The plug-in: what this distribution offers. Importing it imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Iterable

from phyai.environment import Library
from phyai.kernel import Kernel
from phyai.plugins import hookimpl
from phyai.quant.formats import QuantFormat

from phyai_backend_cuda.records import FORMATS, KERNELS

PLUGIN_API = 1


@hookimpl
def phyai_kernels() -> Iterable[Kernel]:
    return KERNELS


@hookimpl
def phyai_quant_formats() -> Iterable[QuantFormat]:
    return FORMATS


@hookimpl
def phyai_libraries() -> Iterable[Library]:
    return (
        Library("triton", ("triton",), "3.6.0"),
        Library("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy"), "14.2.0"),
    )
