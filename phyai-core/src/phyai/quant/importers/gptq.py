"""GPTQ configurations, as AutoGPTQ, GPTQModel and transformers write them.

| tensor | holds |
| --- | --- |
| ``qweight`` | int32 ``[K * bits / 32, N]``: unsigned codes packed along the INPUT |
| ``qzeros`` | int32 ``[groups, N * bits / 32]``: zero points packed along the output; the older store (v1) holds them minus one |
| ``scales`` | ``[groups, N]`` |
| ``g_idx`` | int32 ``[K]``, the group of each input; not ``k // group_size`` with ``desc_act`` |

Which linears are quantized is not listed: those that the file stores so. The last group may be short.
Facts were checked against GPTQModel 7.7.0.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers.base import FoundConfig, Recognized, Refuse, integer, method_of, rule
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.storage import FLOAT_SCALES, LayerTensors, Storage, StoredLayer, with_scale_dtype

_FORMATS = {"gptq": "gptq", "gptq_v2": "gptq_v2"}
_BITS = (2, 3, 4, 8)


def recognize(found: FoundConfig, checkpoint: Checkpoint) -> Recognized | None:
    """See :class:`phyai.quant.importers.base.Importer`."""
    body = found.body
    method = method_of(body)
    standalone = not method and not found.path and "bits" in body and "group_size" in body
    if method != "gptq" and not standalone:
        return None
    form = str(body.get("checkpoint_format") or body.get("format") or "gptq").lower()
    if body.get("is_marlin_format"):
        form = "marlin"
    if form not in _FORMATS:
        raise Refuse(f"GPTQ checkpoint format {form!r} is not supported", "an export as gptq or gptq_v2")
    if body.get("pack_dtype") not in (None, "int32", "torch.int32"):
        raise Refuse(f"GPTQ packed into {body['pack_dtype']} is not supported", "an export packed into int32")
    rules = _dynamic_rules(body, form)
    rules.append(QuantRule(((),), _scheme(body), storage=form, id="gptq"))
    return Recognized("gptq", QuantPlan(tuple(rules)), found.source, STORAGES)


def _scheme(body: Mapping[str, Any]) -> QuantScheme:
    bits, size = integer(body, "bits"), integer(body, "group_size", -1)
    if bits not in _BITS:
        raise Refuse(f"GPTQ with {bits} bits is not supported", ", ".join(map(str, _BITS)))
    if size != -1 and size < 1:
        raise Refuse(f"group_size must be positive, or -1 for a scale per output, not {size}")
    symmetric = bool(body.get("sym", True))
    quant = TensorQuant(
        f"{'int' if symmetric else 'uint'}{bits}",
        "group" if size > 0 else "channel",
        group_size=size if size > 0 else None,
        zero_point=None if symmetric else "int",
        scale_dtype="fp16",
        g_idx=bool(body.get("desc_act", False)) and size > 0,
    )
    return QuantScheme(quant)


def _dynamic_rules(body: Mapping[str, Any], form: str) -> list[QuantRule]:
    """GPTQModel's per-layer overrides: ``-:pattern`` leaves out, ``+:pattern`` or ``pattern`` changes fields."""
    overrides = body.get("dynamic") or {}
    if not isinstance(overrides, Mapping):
        raise Refuse(f"dynamic must map patterns to overrides, not {overrides!r:.80}")
    rules = []
    for pattern, fields in overrides.items():
        if pattern.startswith("-:"):
            rules.append(rule("regex", pattern[2:], None, id=f"dynamic {pattern}"))
            continue
        if not isinstance(fields, Mapping):
            raise Refuse(f"dynamic.{pattern} must be an object, not {fields!r:.80}")
        scheme = _scheme({**body, **fields})
        rules.append(rule("regex", pattern.removeprefix("+:"), scheme, form, id=f"dynamic {pattern}"))
    return rules


def _check(layer: LayerTensors, scheme: QuantScheme, form: str) -> StoredLayer:
    bits = scheme.weight.bits
    rows, n = layer.take("qweight", "weight", dtypes=("I32",), ndim=2).shape
    k = rows * 32 // bits
    groups = scheme.weight.groups(k)
    scale = layer.take("scales", "scale", dtypes=FLOAT_SCALES, shapes=[(groups, n)])
    layer.take("qzeros", "zero_point", dtypes=("I32",), shapes=[(groups, -(-n * bits // 32))])
    g_idx = layer.take_optional("g_idx", "g_idx", dtypes=("I32", "I64"), shapes=[(k,)])
    if g_idx is None and scheme.weight.g_idx:
        raise layer.error("g_idx", "is missing although desc_act is set")
    return layer.finish((n, k), with_scale_dtype(scheme, scale), form)


def _storage(form: str) -> Storage:
    return Storage(form, lambda layer, scheme: _check(layer, scheme, form), f"phyai.quant.realize.gptq:{form}")


#: ``gptq`` holds zero points minus one, ``gptq_v2`` as they are.
STORAGES: dict[str, Storage] = {form: _storage(form) for form in _FORMATS}


def with_symmetry(scheme: QuantScheme, symmetric: bool) -> QuantScheme:
    """``scheme`` with signed codes and no zero point, or unsigned codes with integer zero points."""
    kind, zero = ("int", None) if symmetric else ("uint", "int")
    quant = attrs.evolve(scheme.weight, dtype=f"{kind}{scheme.weight.bits}", zero_point=zero)
    return attrs.evolve(scheme, weight=quant)
