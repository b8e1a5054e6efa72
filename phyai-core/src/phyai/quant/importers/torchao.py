"""torchao tensors in safetensors, as torchao and transformers write them.

A quantized ``NAME.weight`` is stored as ``NAME._weight_qdata``, ``NAME._weight_scale``, …; its tensor class
and fields stand in the safetensors metadata, one JSON object for each tensor, and they alone decide.
Without tensors (a bare configuration) the ``quant_type`` says what is to be expected. Facts were checked
against torchao 0.18.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers.base import FoundConfig, Recognized, Refuse, method_of, rule, string_list
from phyai.quant.importers.torchao_tensors import CLASSES, STORAGES, inner_of, scheme_of
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.scheme import MXFP8, NVFP4, QuantScheme, TensorQuant

_INSTEAD = f"safetensors with tensors of {', '.join(CLASSES)}"


def recognize(found: FoundConfig, checkpoint: Checkpoint) -> Recognized | None:
    """See :class:`phyai.quant.importers.base.Importer`."""
    if method_of(found.body) != "torchao":
        return None
    kind = found.body.get("quant_type")
    if isinstance(kind, str):
        raise Refuse(f"torchao in its older string form ({kind}) is not supported", _INSTEAD)
    if checkpoint.tensors:
        rules = _stored_rules(checkpoint)
    else:
        skipped = string_list(found.body, "modules_to_not_convert")
        rules = [rule("within", name, None, id="skipped") for name in skipped]
        rules.append(_expected_rule(kind))
    return Recognized("torchao", QuantPlan(tuple(rules)), found.source, STORAGES)


def _stored_rules(checkpoint: Checkpoint) -> list[QuantRule]:
    rules = []
    for name, text in checkpoint.metadata.items():
        module, _, parameter = name.rpartition(".")
        if not text.startswith("{"):
            continue
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refuse(f"the metadata of {name} is not JSON: {error}") from None
        kind = entry.get("_type")
        if kind in (None, "Tensor"):
            continue
        if parameter != "weight" or kind not in CLASSES or not isinstance(entry.get("_data"), Mapping):
            raise Refuse(f"{name} is stored as {kind}, which is not supported", _INSTEAD)
        rules.append(rule("path", module, scheme_of(name, kind, entry["_data"]), kind, id=kind))
    if not rules:
        raise Refuse("no tensor's class stands in the safetensors metadata", _INSTEAD)
    return rules


def _expected_rule(kind: Any) -> QuantRule:
    """What a bare configuration promises: its class, and the granularity where it gives one."""
    entry = kind.get("default") if isinstance(kind, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(entry.get("_data"), Mapping):
        raise Refuse(f"torchao quant_type {kind!r:.80} is not supported", _INSTEAD)
    name, data = str(entry.get("_type")), entry["_data"]
    if name == "Int8WeightOnlyConfig":
        scheme, storage = QuantScheme(_sized("int8", data)), "Int8Tensor"
    elif name == "Int8DynamicActivationInt8WeightConfig":
        inputs = TensorQuant("int8", "token", dynamic=True, scale_rule="full_range")
        scheme, storage = QuantScheme(_sized("int8", data), inputs), "Int8Tensor"
    elif name == "Float8WeightOnlyConfig":
        scheme, storage = QuantScheme(_sized("fp8_e4m3", data)), "Float8Tensor"
    elif name == "Float8DynamicActivationFloat8WeightConfig":
        weight = _sized("fp8_e4m3", data)
        granularity = "tensor" if weight.granularity == "tensor" else "token"
        scheme, storage = QuantScheme(weight, TensorQuant("fp8_e4m3", granularity, dynamic=True)), "Float8Tensor"
    elif name in ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig"):
        bits = str(inner_of(data.get("weight_dtype")) or "int8")
        dynamic = TensorQuant("int8", "token", zero_point="int", dynamic=True)
        scheme = QuantScheme(_sized(bits, data), None if name == "IntxWeightOnlyConfig" else dynamic)
        storage = "IntxUnpackedToInt8Tensor"
    elif name == "MXDynamicActivationMXWeightConfig":
        scheme, storage = QuantScheme(MXFP8, attrs.evolve(MXFP8, dynamic=True, scale_rule="mx_ceil")), "MXTensor"
    elif name == "NVFP4WeightOnlyConfig":
        scheme, storage = QuantScheme(NVFP4), "NVFP4Tensor"
    else:
        raise Refuse(f"torchao {name} is not supported", _INSTEAD)
    return QuantRule(((),), scheme, storage=storage, id=name)


def _sized(dtype: str, data: Mapping[str, Any]) -> TensorQuant:
    granularity = data.get("granularity") or data.get("weight_granularity") or {"_type": "PerRow"}
    if isinstance(granularity, list):
        granularity = granularity[-1]
    if not isinstance(granularity, Mapping) or not isinstance(granularity.get("_data") or {}, Mapping):
        raise Refuse(f"torchao granularity {granularity!r:.80} is not supported", _INSTEAD)
    kind, inner = granularity.get("_type"), granularity.get("_data") or {}
    size = inner.get("group_size") if kind == "PerGroup" else data.get("group_size")
    if isinstance(size, int) and size > 0:
        return TensorQuant(dtype, "group", group_size=size)
    return TensorQuant(dtype, "tensor" if kind == "PerTensor" else "channel")
