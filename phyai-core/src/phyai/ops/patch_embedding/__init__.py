"""Patches of images as tokens, with learned positions."""

from phyai.ops.patch_embedding.signature import OP

__all__ = ["OP"]
