"""A transformer's gated feed-forward block."""

from phyai.ops.gated_mlp.signature import OP

__all__ = ["OP"]
