"""Which part of a π model computes in which precision."""

from __future__ import annotations

import attrs
import torch

from phyai_models.pi.config import PiConfig

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@attrs.frozen
class Precision:
    """``vision``: the vision tower and its projection. ``towers``: matrices and activations of the language model
    and the expert. ``norms``: the parameters of their normalizations. ``heads``: the projections around the
    expert, and the sample that is integrated.
    """

    vision: torch.dtype
    towers: torch.dtype
    norms: torch.dtype
    heads: torch.dtype

    @classmethod
    def of(cls, config: PiConfig, params_dtype: str | None) -> Precision:
        """The precision of a checkpoint, or of ``params_dtype`` (a canonical name) in its place.

        None follows lerobot, whose ``bfloat16`` keeps vision, norms and heads in float32. With a ``params_dtype``
        all towers and norms take it; the heads, which are small and feed the integration, stay at least float32.
        """
        if params_dtype is None:
            towers = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
            return cls(vision=torch.float32, towers=towers, norms=torch.float32, heads=torch.float32)
        dtype = DTYPES[params_dtype]
        return cls(vision=dtype, towers=dtype, norms=dtype, heads=torch.promote_types(dtype, torch.float32))
