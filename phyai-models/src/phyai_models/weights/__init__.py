"""Weights: reading safetensors checkpoints tensor by tensor and handing them to layers by name."""

from phyai_models.weights.checkpoint import Checkpoint, TensorInfo
from phyai_models.weights.source import TensorSpec, WeightSource

__all__ = ["Checkpoint", "TensorInfo", "TensorSpec", "WeightSource"]
