"""Sizes of the models whose calls the argument specs are made of.

π0 and π0.5: SigLIP-So400m/14 at 224², Gemma-2B, and the 300M action expert, as lerobot's and openpi's
configurations give them. Cosmos3-Nano: diffusers' ``Cosmos3OmniTransformer`` and the WAN VAE.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from phyai.facts import FactValue


@frozen
class Tower:
    """One transformer tower: hidden width, MLP width, and its attention's heads."""

    family: str
    role: str
    width: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def qkv(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def attention(self) -> int:
        """Width of the attention's output, before the output projection."""
        return self.heads * self.head_dim

    @property
    def facts(self) -> Mapping[str, FactValue]:
        return {"model.family": self.family, "role": self.role}


VISION = Tower("pi05", "vision", width=1152, mlp=4304, heads=16, kv_heads=16, head_dim=72)
PREFIX = Tower("pi05", "prefix", width=2048, mlp=16384, heads=8, kv_heads=1, head_dim=256)
EXPERT = Tower("pi05", "expert", width=1024, mlp=4096, heads=8, kv_heads=1, head_dim=256)
COSMOS3 = Tower("cosmos3", "gen", width=4096, mlp=12288, heads=32, kv_heads=8, head_dim=128)

HEAD: Mapping[str, FactValue] = {"model.family": "pi05", "role": "head"}
PI0_HEAD: Mapping[str, FactValue] = {"model.family": "pi0", "role": "head"}
VAE: Mapping[str, FactValue] = {"model.family": "cosmos3", "role": "vae"}

IMAGE_TOKENS = 256  # (224 / 14)²
CHUNK = 50  # actions per chunk
PREFIX_TOKENS = 968  # three cameras and 200 language tokens
PREFIX_TOKENS_2 = 528  # two cameras and 16 language tokens
VOCABULARY = 257152
