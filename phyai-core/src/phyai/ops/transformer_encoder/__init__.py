"""All layers of a pre-norm transformer encoder, and the norm behind them."""

from phyai.ops.transformer_encoder.signature import OP

__all__ = ["OP"]
