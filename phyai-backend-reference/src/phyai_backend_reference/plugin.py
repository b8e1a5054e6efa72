"""The plug-in: what this distribution offers. Importing it imports neither torch nor any kernel."""

from __future__ import annotations

from collections.abc import Iterable

from phyai.kernel import Kernel
from phyai.plugins import hookimpl

from phyai_backend_reference.quantized import rows as quantized
from phyai_backend_reference.rows import reference, torch, torch_attention

PLUGIN_API = 1


@hookimpl
def phyai_kernels() -> Iterable[Kernel]:
    return (*reference.KERNELS, *quantized.KERNELS, *torch.KERNELS, *torch_attention.KERNELS)
