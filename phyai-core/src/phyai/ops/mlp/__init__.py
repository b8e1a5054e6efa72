"""A transformer's feed-forward block."""

from phyai.ops.mlp.signature import OP

__all__ = ["OP"]
