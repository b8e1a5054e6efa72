"""Quantization: what it means, which layer has which, and how checkpoints write it down.

Four stages, each reading only the one before: *recognize* (a checkpoint's config becomes a
:class:`QuantPlan`), *match* (a layer's name and class give its :class:`QuantScheme`), *lower* (scheme
and device give a memory layout) and *realize* (tensors). Nothing here imports torch, except
:mod:`phyai.quant.realize`, which touches tensors.
"""

from phyai.quant.names import Matcher
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.policy_section import QuantPolicyError, QuantProblem, plan_from_policy
from phyai.quant.scheme import QuantScheme, TensorQuant

__all__ = [
    "Matcher",
    "QuantPlan",
    "QuantPolicyError",
    "QuantProblem",
    "QuantRule",
    "QuantScheme",
    "TensorQuant",
    "plan_from_policy",
]
