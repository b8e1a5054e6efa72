"""Element types: the numbers that a code of a few bits can stand for.

>>> element("int4").minimum, element("int4").maximum
(-8.0, 7.0)
>>> element("fp8_e4m3").maximum, element("fp4_e2m1").values
(448.0, (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
"""

from __future__ import annotations

import functools
import re

import attrs

from phyai.errors import DeclarationError
from phyai.facts import ELEMENT_TYPES


@attrs.frozen
class Element:
    """One element type.

    ``kind`` is ``int`` (two's complement), ``uint`` or ``float``. ``minimum`` and ``maximum`` are the
    smallest and largest finite values. For floats ``exponent`` and ``mantissa`` count bits and ``bias``
    is the exponent's; a code is sign, exponent, mantissa from the highest bit down.
    """

    name: str
    kind: str
    bits: int
    minimum: float
    maximum: float
    exponent: int = 0
    mantissa: int = 0

    @property
    def bias(self) -> int:
        return 0 if self.kind != "float" else (1 << (self.exponent - 1)) - 1

    @property
    def values(self) -> tuple[float, ...]:
        """The non-negative finite values of a float of at most six bits, by code."""
        if self.kind != "float" or self.bits > 6:
            raise DeclarationError(f"{self.name} is not a float of at most six bits")
        out = []
        for code in range(1 << (self.bits - 1)):
            exponent, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
            scale = 2.0 ** (max(exponent, 1) - self.bias - self.mantissa)
            out.append(scale * (fraction + ((1 << self.mantissa) if exponent else 0)))
        return tuple(out)


#: Floating element types: the OCP 8-bit types and the OCP microscaling 6- and 4-bit types.
_FLOATS: dict[str, Element] = {
    "fp8_e4m3": Element("fp8_e4m3", "float", 8, -448.0, 448.0, 4, 3),
    "fp8_e5m2": Element("fp8_e5m2", "float", 8, -57344.0, 57344.0, 5, 2),
    "fp6_e3m2": Element("fp6_e3m2", "float", 6, -28.0, 28.0, 3, 2),
    "fp6_e2m3": Element("fp6_e2m3", "float", 6, -7.5, 7.5, 2, 3),
    "fp4_e2m1": Element("fp4_e2m1", "float", 4, -6.0, 6.0, 2, 1),
}

#: Every element type's name.
ELEMENT_NAMES = ELEMENT_TYPES


@functools.cache
def element(name: str) -> Element:
    """The element type called ``name``.

    Raises:
        DeclarationError: there is no such element type.
    """
    if name in _FLOATS:
        return _FLOATS[name]
    found = re.fullmatch(r"(u?int)([2-8])", name)
    if found is None:
        raise DeclarationError(f"{name!r} is not an element type; there are {', '.join(ELEMENT_NAMES)}")
    kind, bits = found[1], int(found[2])
    if kind == "int":
        return Element(name, kind, bits, -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
    return Element(name, kind, bits, 0.0, 2.0**bits - 1)
