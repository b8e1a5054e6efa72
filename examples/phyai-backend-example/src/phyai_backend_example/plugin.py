"""What this backend declares. Importing it imports neither torch nor the kernel."""

from __future__ import annotations

from collections.abc import Iterable

from phyai.kernel import Band, Capture, Kernel, Numerics, Param
from phyai.plugins import hookimpl
from phyai.predicates import match

PLUGIN_API = 1

_DTYPES = ("bf16", "fp16", "fp32", "fp64")

_GATED_ACTIVATION = Kernel(
    id="example.gated_activation.in_place",
    op="gated_activation",
    when=match(
        {
            "device.type": "cpu",
            "attrs.activation": ["silu", "gelu", "gelu_tanh"],
            "any_of": [{"dtype.x": dtype, "dtype.y": dtype} for dtype in _DTYPES],
        }
    ),
    prepare="phyai_backend_example.gated_activation:prepare",
    capture=Capture.NEVER,  # it runs on a CPU, where there are no CUDA graphs
    numerics=Numerics(reproducible=True),
    band=Band.OPTIMIZED,  # faster than torch.gated_activation.* at large calls, and not slower at small ones
    params=(Param("rows", "rows that are computed at once; 0: all of them", values=(0, 16, 64), default=0),),
    doc="the activated half is computed where the result goes, then multiplied in place",
)


@hookimpl
def phyai_kernels() -> Iterable[Kernel]:
    return (_GATED_ACTIVATION,)
