"""The plug-in: what this distribution offers. Importing it imports neither torch nor humming."""

from __future__ import annotations

from collections.abc import Iterable

from phyai.environment import Library
from phyai.kernel import Kernel
from phyai.plugins import hookimpl
from phyai.quant.formats import QuantFormat

from phyai_backend_humming import rows

PLUGIN_API = 1


@hookimpl
def phyai_kernels() -> Iterable[Kernel]:
    return rows.KERNELS


@hookimpl
def phyai_quant_formats() -> Iterable[QuantFormat]:
    return (rows.FORMAT,)


@hookimpl
def phyai_libraries() -> Iterable[Library]:
    return (
        Library("humming", ("humming-kernels",), "0.1.20"),
        Library("triton", ("triton", "triton-windows"), "3.6.0"),
    )
