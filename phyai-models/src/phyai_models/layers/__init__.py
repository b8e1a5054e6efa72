"""Layers: each describes its computation by holding call sites, and none knows which kernel runs there."""

from phyai_models.layers.attention import KeysToCache, PagedAttention, SelfAttention
from phyai_models.layers.base import Layer, Unused
from phyai_models.layers.embedding import Embedding, PatchEmbedding
from phyai_models.layers.linear import Linear, LinearParameters, Shard
from phyai_models.layers.mlp import MLP, Activation, GatedMLP
from phyai_models.layers.norm import AdaRMSNorm, LayerNorm, RMSNorm
from phyai_models.layers.scope import Scope
from phyai_models.layers.stack import Stack
from phyai_models.layers.tokens import KVCache, Tokens

__all__ = [
    "MLP",
    "Activation",
    "AdaRMSNorm",
    "Embedding",
    "GatedMLP",
    "KVCache",
    "KeysToCache",
    "Layer",
    "LayerNorm",
    "Linear",
    "LinearParameters",
    "PagedAttention",
    "PatchEmbedding",
    "RMSNorm",
    "Scope",
    "SelfAttention",
    "Shard",
    "Stack",
    "Tokens",
    "Unused",
]
