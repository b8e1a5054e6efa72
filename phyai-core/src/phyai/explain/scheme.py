"""The quantization schemes that an incomplete question describes, of each weight that a call reads quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.composite import form_of, innermost
from phyai.errors import CallError
from phyai.facts import FactValue
from phyai.op import Op
from phyai.quant import QuantPolicyError, QuantScheme, plan_from_policy
from phyai.quant.weight import stored_dtype

#: What a policy calls the same in a scheme.
_WEIGHT = {
    "quant.weight": "dtype", "quant.granularity": "granularity", "quant.group_size": "group_size",
    "quant.symmetric": "symmetric", "quant.zero_point": "zero_point", "quant.scale_dtype": "scale_dtype",
}  # fmt: skip
_INPUT = {"quant.activation": "dtype", "quant.activation_granularity": "granularity"}


def of_parts(op: Op, known: Mapping[str, Any]) -> dict[str, Any]:
    """What a question says of ``quant.*``, as the calls of a composite op carry it: of each part that reads a weight.

    ``quant.*`` is meant of every weight of which the question says nothing by itself (``parts.<part>.quant.*``).

    Raises:
        CallError: no part reads a quantized weight.
    """
    said = {name: value for name, value in known.items() if name.startswith("quant.")}
    if not said or not op.parts:
        return dict(known)
    readers = _readers(op)
    if not any(readers.values()):
        raise CallError(f"no weight of {op.name} can be quantized, so its calls have no {min(said)}")
    heads = [head for head in readers if readers[head] and not any(name.startswith(f"{head}quant.") for name in known)]
    rest = {name: value for name, value in known.items() if name not in said}
    return rest | {f"{head}{name}": value for head in heads for name, value in said.items()}


def described(op: Op, known: Mapping[str, Any]) -> dict[str, FactValue]:
    """The facts that follow from those that say how weights are quantized: everything else of the schemes, and the
    types that codes are stored in.

    Raises:
        CallError: there is no such scheme.
    """
    found: dict[str, FactValue] = {}
    for head, weights in _readers(op).items():
        own = {name[len(head) :]: value for name, value in known.items() if name.startswith(f"{head}quant.")}
        if any(value is not None for value in own.values()) and own.get("quant.weight") is None:
            raise CallError(
                f"the facts {head}quant.* describe no scheme: say which element type the weight has, "
                f"{head}quant.weight=int4"
            )
        scheme = described_scheme(own)
        if scheme is not None:
            found |= {f"{head}{name}": value for name, value in scheme.facts().items()}
            found |= {f"dtype.{weight}": stored_dtype(scheme) for weight in weights}
    return {name: value for name, value in found.items() if name not in known}


def _readers(op: Op) -> dict[str, tuple[str, ...]]:
    """The weights that can be quantized, by what the facts of their form begin with: ``parts.<part>.`` of a composite
    op, else nothing."""
    holding = [tensor.name for tensor in op.weights if "int8" in tensor.dtypes]
    heads = [head for head, _ in innermost(op.parts)] or [""]
    return {head: tuple(name for name in holding if form_of(op, name) == head) for head in heads}


def described_scheme(known: Mapping[str, Any]) -> QuantScheme | None:
    """The scheme of which ``known`` gives the weight's element type, and perhaps more.

    What it leaves open is as in a policy's ``quantization`` section. None where ``known`` says no element type, or
    names another scheme than that: it then speaks for itself.

    Raises:
        CallError: there is no such scheme.

    >>> described_scheme({"quant.weight": "int4", "quant.group_size": 128}).name
    'w4a16_g128'
    """
    weight, of_input = (
        {key: known[name] for name, key in keys.items() if known.get(name) is not None} for keys in (_WEIGHT, _INPUT)
    )
    if "dtype" not in weight:
        return None
    if "group_size" not in weight and known.get("quant.block_k") is not None:
        weight["block_shape"] = [known.get("quant.block_n") or 1, known["quant.block_k"]]
    try:
        scheme = plan_from_policy({"default": {"weight": weight, "input": of_input or None}}).default
    except QuantPolicyError as error:
        raise CallError(f"the quant.* facts describe no scheme: {error}") from None
    return scheme if scheme is not None and known.get("quant.scheme") in (None, scheme.name) else None
