"""The quantization scheme that an incomplete question describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.errors import CallError
from phyai.facts import FactValue
from phyai.quant import QuantPolicyError, plan_from_policy

#: What a policy calls the same in a scheme.
_WEIGHT = {
    "quant.weight": "dtype", "quant.granularity": "granularity", "quant.group_size": "group_size",
    "quant.symmetric": "symmetric", "quant.zero_point": "zero_point", "quant.scale_dtype": "scale_dtype",
}  # fmt: skip
_INPUT = {"quant.activation": "dtype", "quant.activation_granularity": "granularity"}


def described(known: Mapping[str, Any]) -> dict[str, FactValue]:
    """Every ``quant.*`` fact of the scheme of which ``known`` gives the weight's element type, and perhaps more.

    What it leaves open is as in a policy's ``quantization`` section. Empty where ``known`` says no element type, or
    names the scheme itself.

    Raises:
        CallError: there is no such scheme.

    >>> facts = described({"quant.weight": "int4", "quant.group_size": 128})
    >>> facts["quant.scheme"], facts["quant.granularity"], facts["quant.symmetric"]
    ('w4a16_g128', 'group', True)
    """
    weight, of_input = (
        {key: known[name] for name, key in keys.items() if known.get(name) is not None} for keys in (_WEIGHT, _INPUT)
    )
    if "dtype" not in weight or "quant.scheme" in known:
        return {}
    if "group_size" not in weight and known.get("quant.block_k") is not None:
        weight["block_shape"] = [known.get("quant.block_n") or 1, known["quant.block_k"]]
    try:
        scheme = plan_from_policy({"default": {"weight": weight, "input": of_input or None}}).default
    except QuantPolicyError as error:
        raise CallError(f"the quant.* facts describe no scheme: {error}") from None
    return {} if scheme is None else scheme.facts()
