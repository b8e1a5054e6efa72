"""Weights: reading safetensors checkpoints tensor by tensor and handing them to layers by name."""

from phyai_models.weights.checkpoint import Checkpoint
from phyai_models.weights.quantized import QuantizedLayers
from phyai_models.weights.random import RandomSource
from phyai_models.weights.source import TensorSpec, WeightSource

__all__ = ["Checkpoint", "QuantizedLayers", "RandomSource", "TensorSpec", "WeightSource"]
