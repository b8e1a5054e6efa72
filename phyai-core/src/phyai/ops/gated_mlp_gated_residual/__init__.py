"""A transformer's gated feed-forward block that is gated and added to a residual."""

from phyai.ops.gated_mlp_gated_residual.signature import OP

__all__ = ["OP"]
