"""Scale, shift and gate by a condition."""

from phyai.ops.modulation.signature import OP

__all__ = ["OP"]
