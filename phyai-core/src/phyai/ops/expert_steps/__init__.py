"""All denoising steps of a flow-matching action expert."""

from phyai.ops.expert_steps.signature import OP

__all__ = ["OP"]
