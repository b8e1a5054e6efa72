"""Any checkpoint's linear layers, whatever the model: loaded exactly as their author wrote them."""

from phyai_models.quantized.linears import CheckpointLinear, load_linears

__all__ = ["CheckpointLinear", "load_linears"]
