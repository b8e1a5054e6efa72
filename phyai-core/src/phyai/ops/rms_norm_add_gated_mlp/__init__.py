"""A residual norm and the gated feed-forward block behind it."""

from phyai.ops.rms_norm_add_gated_mlp.signature import OP

__all__ = ["OP"]
