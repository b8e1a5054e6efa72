"""NVIDIA ModelOpt configurations: ``hf_quant_config.json``, or inline in ``config.json``.

The algorithm's name decides, never the ``config_groups`` that newer versions add in imitation of
compressed-tensors (they miss granularities and group sizes). Names in ``exclude_modules`` may hold
wildcards. Facts were checked against ModelOpt 0.47.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers.base import FoundConfig, Recognized, Refuse, method_of, rule, string_list
from phyai.quant.importers.modelopt_storage import STORAGES
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.scheme import MXFP4, MXFP8, NVFP4, NVFP4_INPUT, QuantScheme, TensorQuant

_FP8_STATIC = TensorQuant("fp8_e4m3", "tensor", scale_rule="inverse")
_FP8_DYNAMIC = TensorQuant("fp8_e4m3", "tensor", dynamic=True, scale_rule="inverse")
_FP8_TOKEN = TensorQuant("fp8_e4m3", "token", dynamic=True, scale_rule="inverse")
_FP8_TENSOR = TensorQuant("fp8_e4m3", "tensor")
_FP8_CHANNEL = TensorQuant("fp8_e4m3", "channel")
_FP8_BLOCK = TensorQuant("fp8_e4m3", "block", block_shape=(128, 128))
_INT8_CHANNEL = TensorQuant("int8", "channel")
_INT4 = TensorQuant("int4", "group", group_size=128)
_MXFP4 = attrs.evolve(MXFP4, scale_rule="mx_ceil")
_MXFP8 = attrs.evolve(MXFP8, scale_rule="mx_ceil")


def _dynamic(quant: TensorQuant) -> TensorQuant:
    return attrs.evolve(quant, dynamic=True)


#: By algorithm: the scheme, and how a layer of it is stored.
_ALGORITHMS: dict[str, tuple[QuantScheme, str]] = {
    "FP8": (QuantScheme(_FP8_TENSOR, _FP8_STATIC), "FP8"),
    "FP8_PER_CHANNEL_PER_TOKEN": (
        QuantScheme(_FP8_CHANNEL, _FP8_TOKEN), "FP8_PER_CHANNEL"),
    "FP8_PB_WO": (QuantScheme(_FP8_BLOCK), "FP8_BLOCK"),
    "W8A16": (QuantScheme(_INT8_CHANNEL), "INT8"),
    "W8A8_SQ_PER_CHANNEL": (QuantScheme(_INT8_CHANNEL, TensorQuant("int8", "tensor")), "INT8"),
    "W4A16_AWQ": (QuantScheme(_INT4), "INT4"),
    "W4A8_AWQ": (QuantScheme(_INT4, _FP8_STATIC), "INT4"),
    "NVFP4": (QuantScheme(NVFP4, NVFP4_INPUT), "NVFP4"),
    "NVFP4_AWQ": (QuantScheme(NVFP4, NVFP4_INPUT), "NVFP4"),
    "W4A16_NVFP4": (QuantScheme(NVFP4), "NVFP4"),
    "W4A8_NVFP4_FP8": (QuantScheme(NVFP4, _FP8_STATIC), "NVFP4"),
    "MXFP4": (QuantScheme(_MXFP4, _dynamic(_MXFP4)), "MXFP4"),
    "W4A8_MXFP4_FP8": (QuantScheme(_MXFP4, _FP8_DYNAMIC), "MXFP4"),
    "MXFP8": (QuantScheme(_MXFP8, _dynamic(_MXFP8)), "MXFP8"),
}  # fmt: skip
_ALIASES = {
    "INT8_SQ": "W8A8_SQ_PER_CHANNEL", "INT8_WO": "W8A16", "INT4_AWQ": "W4A16_AWQ", "FP8_PB_REAL": "FP8_PB_WO",
    "FP8_PC_PT": "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4_STATIC": "NVFP4",
}  # fmt: skip
_NOT_QUANTIZED = ("", "NONE", "UNQUANTIZED", "NO_QUANT")


def recognize(found: FoundConfig, checkpoint: Checkpoint) -> Recognized | None:
    """See :class:`phyai.quant.importers.base.Importer`."""
    body = found.body
    inner = body.get("quantization")
    if isinstance(inner, Mapping) and "quant_algo" in inner:
        producer = body.get("producer")
        body = {"producer": producer, **inner}
    elif not method_of(body).startswith("modelopt"):
        return None
    name, cache = _name(body.get("quant_algo")), body.get("kv_cache_quant_algo") or body.get("kv_cache_scheme")
    if name in _NOT_QUANTIZED and not cache:
        raise Refuse("quant_algo is missing: nothing says how the weights are quantized")
    excluded = string_list(body, "exclude_modules") + string_list(body, "ignore")
    rules = [_name_rule(pattern, None, None, "excluded") for pattern in dict.fromkeys(excluded)]
    if name == "MIXED_PRECISION":
        rules += _per_layer(body)
    elif name not in _NOT_QUANTIZED:
        scheme, storage = _algorithm(name, body)
        rules.append(QuantRule(((),), scheme, storage=storage, id=name))
    return Recognized("modelopt", QuantPlan(tuple(rules)), found.source, STORAGES, {"scheme": cache} if cache else None)


def _name(value: Any) -> str:
    name = str(value or "").upper()
    return _ALIASES.get(name, name)


def _name_rule(pattern: str, scheme: QuantScheme | None, storage: str | None, id: str) -> QuantRule:
    wild = any(c in pattern for c in "*?[")
    return rule("glob" if wild else "within", pattern, scheme, storage, id=id)


def _per_layer(body: Mapping[str, Any]) -> list[QuantRule]:
    layers = body.get("quantized_layers")
    if not isinstance(layers, Mapping):
        raise Refuse("MIXED_PRECISION without quantized_layers: nothing says which layer has which algorithm")
    rules = []
    for layer, entry in layers.items():
        if not isinstance(entry, Mapping):
            raise Refuse(f"quantized_layers.{layer} must be an object, not {entry!r:.80}")
        name = _name(entry.get("quant_algo"))
        scheme, storage = (None, None) if name in _NOT_QUANTIZED else _algorithm(name, entry)
        rules.append(_name_rule(layer, scheme, storage, name or "UNQUANTIZED"))
    return rules


def _algorithm(name: str, entry: Mapping[str, Any]) -> tuple[QuantScheme, str]:
    if name == "NVFP4_SVD":
        raise Refuse("NVFP4_SVD adds a low-rank product to every layer, which is not supported", "NVFP4 or NVFP4_AWQ")
    if name not in _ALGORITHMS:
        raise Refuse(f"unknown ModelOpt algorithm {name!r}", ", ".join(_ALGORITHMS))
    if entry.get("has_zero_point"):
        raise Refuse(f"{name} with has_zero_point is not supported", "a symmetric export")
    scheme, storage = _ALGORITHMS[name]
    size = entry.get("group_size") or _group_size_of_groups(entry)
    if size:
        scheme = _with_group_size(name, scheme, size)
    elif storage in ("INT4", "NVFP4"):
        storage += "_ANY_GROUP"  # only hf_quant_config.json says the size; ModelOpt's groups divide the input
    return scheme, storage


def _group_size_of_groups(entry: Mapping[str, Any]) -> Any:
    """The group size that an inline configuration may give in its ``config_groups``."""
    groups = entry.get("config_groups")
    if not isinstance(groups, Mapping):
        return None
    weights = [g.get("weights") for g in groups.values() if isinstance(g, Mapping)]
    sizes = {w["group_size"] for w in weights if isinstance(w, Mapping) and isinstance(w.get("group_size"), int)}
    return sizes.pop() if len(sizes) == 1 else None


def _with_group_size(name: str, scheme: QuantScheme, size: Any) -> QuantScheme:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise Refuse(f"group_size must be a positive whole number, not {size!r}")
    weight = scheme.weight
    if weight.granularity == "block":
        return attrs.evolve(scheme, weight=attrs.evolve(weight, block_shape=(size, size)))
    if weight.granularity != "group" or weight.group_size == size:
        return scheme
    if weight.scale_dtype == "e8m0":
        raise Refuse(f"{name} with group_size {size} is not supported", f"group_size {weight.group_size}")
    inputs = scheme.input
    if inputs is not None and inputs.group_size is not None:
        inputs = attrs.evolve(inputs, group_size=size)
    return attrs.evolve(scheme, weight=attrs.evolve(weight, group_size=size), input=inputs)
