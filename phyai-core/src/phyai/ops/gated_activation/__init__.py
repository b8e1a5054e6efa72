"""Activation of one half times the other."""

from phyai.ops.gated_activation.signature import OP

__all__ = ["OP"]
