"""The plain layout: the form that every weight is realized in, and that packers read.

Nothing here imports torch; the fields hold torch tensors.
"""

from __future__ import annotations

from typing import Any

import attrs

from phyai.facts import FactValue
from phyai.quant.formats import PLAIN
from phyai.quant.scheme import QuantScheme


@attrs.frozen(eq=False)
class QuantizedWeight:
    """A quantized weight ``[N, K]`` and what its layer needs beside it.

    In the plain layout:

    Attributes:
        scheme: what the numbers mean.
        shape: (N, K), the logical shape, whatever the codes' shape is.
        codes: 8-bit types one code per element ``[N, K]``: ``int8``, ``uint8``, ``float8_e4m3fn``,
            ``float8_e5m2``. Narrower types a stream of bits per row, uint8 ``[N, ceil(K * bits / 8)]``:
            code ``k`` occupies bits ``k * bits`` to ``(k + 1) * bits - 1``, lowest first, so that of two
            4-bit codes the first is the low nibble. Integers are two's complement; a short last byte is
            filled with zero bits.
        scale: ``scheme.weight.scale_shape(N, K)``, in the type the scheme names; e8m0 is uint8, the
            power of two plus 127.
        zero_point: the scales' shape; integers as int16 (GPTQ's can be one more than a code can), floats in float32.
        second_scale: float64 scalar that multiplies every scale. (Double, so that a stored divisor
            loses nothing by being inverted.)
        g_idx: int32 ``[K]``, the group of each input.
        pre_scale: float ``[K]``, multiplies the input.
        input_scale: of a static input, float32 scalar (``tensor``); of a dynamic one with a second
            scale, that second scale, float64 scalar.
        input_zero_point: of a static asymmetric input, float32 scalar.
        output_scale, output_zero_point: the same of a quantized output.
        layout: the memory layout; packed layouts keep their tensors in ``packed``.
        packed: a packed layout's own tensors by name.
    """

    scheme: QuantScheme
    shape: tuple[int, int]
    codes: Any = None
    scale: Any = None
    zero_point: Any = None
    second_scale: Any = None
    g_idx: Any = None
    pre_scale: Any = None
    input_scale: Any = None
    input_zero_point: Any = None
    output_scale: Any = None
    output_zero_point: Any = None
    layout: str = PLAIN
    packed: dict[str, Any] = attrs.field(factory=dict)

    @property
    def dtype(self) -> str:
        """What the codes are stored as."""
        return stored_dtype(self.scheme)

    @property
    def ndim(self) -> int:
        return 2

    def facts(self) -> dict[str, FactValue]:
        """The scheme's facts and the layout's."""
        return {**self.scheme.facts(), "quant.layout": self.layout}

    def tensors(self) -> dict[str, Any]:
        """Every tensor that is there, by field name."""
        named = {f.name: getattr(self, f.name) for f in attrs.fields(type(self))}
        found = {name: value for name, value in named.items() if hasattr(value, "data_ptr")}
        return {**found, **self.packed}

    def nbytes(self) -> int:
        """Bytes of memory that all its tensors take."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def to(self, device: Any) -> QuantizedWeight:
        """The same weight on another device."""
        changes = {name: t.to(device) for name, t in self.tensors().items() if name not in self.packed}
        return attrs.evolve(self, **changes, packed={name: t.to(device) for name, t in self.packed.items()})


def stored_dtype(scheme: QuantScheme) -> str:
    """What a weight's codes are stored as in the plain layout: the element type when it has 8 bits, else ``uint8``."""
    return scheme.weight.dtype if scheme.weight.bits == 8 else "uint8"
