"""Names that policy files of the earlier system use, as data, so that its files load unchanged.

Ops carry their other spellings themselves (``Op.aliases``). Here are the facts it names or values differently, what it
has and PhyAI has not, and which distribution a backend comes with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.facts import FactKind, FactSpec

SCHEMAS = ("phyai.kernel/v1", "v1", "1")

#: A fact of the earlier system, and the facts here that mean the same: the first that the op has counts.
_FACTS: Mapping[str, tuple[str, ...]] = {
    "dtype.input": ("dtype.x", "dtype.q"),
    "dtype.output": ("dtype.y", "dtype.o"),
    "dtype.key": ("dtype.k",),
    "dtype.value": ("dtype.v",),
    "shape.tokens": ("shape.M", "shape.T", "shape.Sq"),
    "shape.kv_tokens": ("shape.Sk",),
    "shape.hidden": ("shape.D",),
    "attrs.sliding_window": ("attrs.window",),
    "attrs.logits_soft_cap": ("attrs.soft_cap",),
}

_ABSENT: Mapping[FactKind, tuple[str, ...]] = {
    FactKind.NUMBER: (
        "shape.tokens", "shape.kv_tokens", "shape.hidden", "shape.heads", "shape.kv_heads", "shape.head_dim",
        "shape.key_heads", "shape.value_heads", "shape.state_heads", "shape.cond_dim", "attrs.layer_id",
        "attrs.sliding_window", "attrs.logits_soft_cap", "attrs.kv_tokens",
    ),
    FactKind.NAME: (
        "dtype.input", "dtype.output", "dtype.key", "dtype.value", "dtype.weight", "dtype.bias", "dtype.residual",
        "dtype.modulation", "attrs.variant", "attrs.mask_kind", "attrs.layout", "attrs.activation",
    ),
    FactKind.FLAG: (
        "attrs.bias", "attrs.causal", "attrs.masked", "attrs.gated", "attrs.fused_compatible", "attrs.use_qk_l2norm",
    ),
}  # fmt: skip

#: Facts of the earlier system. Where the op here has none of that name, a rule that asks for one never matches.
ABSENT_FACTS: Mapping[str, FactSpec] = {
    name: FactSpec(name, kind, "a fact of the earlier system") for kind, names in _ABSENT.items() for name in names
}

#: Ops of the earlier system that PhyAI has not.
ABSENT_OPS = frozenset({"attention_gdn", "rmsnorm_silu_mul"})

#: Kernels that have another id here. An id that a backend still has is never replaced.
KERNELS: Mapping[str, str] = {
    f"flashinfer.activation.{name}_and_mul": "flashinfer.gated_activation" for name in ("silu", "gelu", "gelu_tanh")
}

#: Parameters of its kernels that PhyAI's have not.
ABSENT_PARAMS = frozenset({"compute_config"})

#: The distribution that a backend comes with; ``phyai-backend-<name>`` is the guess for any other.
DISTRIBUTIONS: Mapping[str, str] = {
    "reference": "phyai-backend-reference",
    "torch": "phyai-backend-reference",
    "flashinfer": "phyai-backend-flashinfer",
    "humming": "phyai-backend-humming",
    "cuda": "phyai-backend-cuda",
}

#: Backends of the earlier system, and what stands in their place here.
REPLACED_BACKENDS: Mapping[str, str] = {"sdpa": "torch", "eager": "reference", "phyai_kernel": "cuda"}


def distribution(backend: str) -> str:
    """The distribution to install for a backend."""
    return DISTRIBUTIONS.get(backend, f"phyai-backend-{backend.replace('_', '-')}")


def translate(name: str, value: Any, has: Callable[[str], bool]) -> dict[str, Any]:
    """One condition in PhyAI's facts; as it is where it needs no translation. ``has`` tells an op's facts.

    >>> translate("dtype.input", "bf16", {"dtype.x"}.__contains__)
    {'dtype.x': 'bf16'}
    >>> translate("attrs.bias", False, {"dtype.bias"}.__contains__)
    {'dtype.bias': None}
    >>> translate("quant.format", "bf16", {"dtype.x", "quant.format"}.__contains__)
    {'quant.format': None, 'dtype.x': 'bf16'}
    """
    if name == "quant.format" and has("dtype.x") and _dense(value):
        return {name: None, "dtype.x": value}  # it calls an ordinary weight a format
    if name.startswith("lib.") and isinstance(value, bool):
        return {name: ">=0" if value else None}  # there a library is there or not; here it has a version
    if name == "quant.granularity":
        short = [v.removeprefix("per_") if isinstance(v, str) else v for v in _listed(value)]
        return {name: short if isinstance(value, list) else short[0]}
    if has(name):
        return {name: value}
    if name == "attrs.bias" and isinstance(value, bool) and has("dtype.bias"):
        return {"dtype.bias": "*" if value else None}
    return {next((new for new in _FACTS.get(name, ()) if has(new)), name): value}


def _dense(value: Any) -> bool:
    values = _listed(value)
    return bool(values) and all(v in ("bf16", "fp16") for v in values)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
