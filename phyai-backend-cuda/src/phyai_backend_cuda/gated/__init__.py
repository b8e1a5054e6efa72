"""A gated feed-forward block's first product and its activation, as one launch: ``csrc/gated.cu``."""
