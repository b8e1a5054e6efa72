"""compressed-tensors configurations, as llm-compressor and compressed-tensors write them.

A name's group is found as the library finds it: exact names before regular expressions (in
alphabetical order, not the file's) before class names; ``ignore`` before all. Facts were checked
against compressed-tensors 0.20.0 and 0.13.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from phyai.errors import DeclarationError
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers.base import FoundConfig, Recognized, Refuse, integer, method_of, rule, string_list
from phyai.quant.importers.ct_presets import PRESETS
from phyai.quant.importers.ct_storage import STORAGES, storages_of
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.scheme import QuantScheme, TensorQuant

_UNSUPPORTED_FORMATS = {
    "dense": "its weights are stored dense, not quantized",
    "fakequant": "its weights are stored dense with separate scales, not compressed",
    "marlin-24": "2:4 sparse weights in Marlin's own order",
    "sparse-24-bitmask": "weights compressed by 2:4 sparsity",
    "sparse-bitmask": "weights compressed by sparsity",
}
_FLOATS = {8: "fp8_e4m3", 6: "fp6_e2m3", 4: "fp4_e2m1"}
_SCALE_DTYPES = {"uint8": "e8m0", "float8_e4m3fn": "fp8_e4m3", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def recognize(found: FoundConfig, checkpoint: Checkpoint) -> Recognized | None:
    """See :class:`phyai.quant.importers.base.Importer`."""
    if method_of(found.body) != "compressed-tensors":
        return None
    body = found.body
    _refuse_sparsity(body)
    top = body.get("format")
    if top is not None and top != "mixed-precision":
        _check_format(top)
    groups, cache = body.get("config_groups"), body.get("kv_cache_scheme")
    if not isinstance(groups, Mapping) or not (groups or cache):
        raise Refuse("config_groups is missing: nothing says which layers are quantized, and how")
    if body.get("transform_config"):
        raise Refuse(
            "transform_config asks for rotations of the activations at run time, which are not supported",
            "a checkpoint made without SpinQuant, QuIP or other transforms",
        )
    notes = [] if groups else ["only the key/value cache is quantized"]
    by_target: dict[str, tuple[QuantScheme | None, str | None, str]] = {}
    for name, group in groups.items():
        scheme, storage, targets = _group(name, group, top)
        for target in targets:  # as in the library, a later group takes a target over
            by_target[target] = (scheme, storage, name)
    if body.get("quantization_status") not in (None, "compressed"):
        notes.append(f"quantization_status is {body['quantization_status']!r}; what is stored decides")
    rules = [r for name in string_list(body, "ignore") for r in _target_rules(name, None, None, "ignore")]
    regex = sorted(t for t in by_target if t.startswith("re:"))
    names = sorted(t for t in by_target if not t.startswith("re:"))
    rules += [rule("path", t, *by_target[t][:2], id=by_target[t][2]) for t in names]
    rules += [rule("regex", t.removeprefix("re:"), *by_target[t][:2], id=by_target[t][2]) for t in regex]
    rules += [rule("module_cls", t, *by_target[t][:2], id=by_target[t][2]) for t in names]
    version = body.get("version")
    version = version if isinstance(version, str) else None
    return Recognized(
        "compressed-tensors", QuantPlan(tuple(rules)), found.source, storages_of(version),
        {"scheme": cache} if cache else None, tuple(notes),
    )  # fmt: skip


def _refuse_sparsity(body: Mapping[str, Any]) -> None:
    sparsity = body.get("sparsity_config") or {}
    form = sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity
    if form not in (None, "dense"):
        raise Refuse(
            f"sparsity_config has format {form!r}: the weights are compressed by sparsity",
            "a checkpoint saved with sparsity format 'dense'",
        )


def _check_format(form: Any) -> str:
    if not isinstance(form, str):
        raise Refuse(f"format must be a name, not {form!r:.80}", "one of " + ", ".join(STORAGES))
    if form in _UNSUPPORTED_FORMATS:
        raise Refuse(
            f"compressed-tensors format {form!r}: {_UNSUPPORTED_FORMATS[form]}", "one of " + ", ".join(STORAGES)
        )
    if form not in STORAGES:
        raise Refuse(f"unknown compressed-tensors format {form!r}", "one of " + ", ".join(STORAGES))
    return str(form)


def _target_rules(target: str, scheme: QuantScheme | None, storage: str | None, id: str) -> list[QuantRule]:
    """A name that may be a path or a class, or a regular expression."""
    if target.startswith("re:"):
        return [rule("regex", target.removeprefix("re:"), scheme, storage, id=id)]
    return [rule(kind, target, scheme, storage, id=id) for kind in ("path", "module_cls")]


def _group(name: str, group: Any, top: str | None) -> tuple[QuantScheme | None, str | None, list[str]]:
    """The scheme, the storage and the targets of one group."""
    where = f"config_groups.{name}"
    if isinstance(group, list):  # a preset's name with its targets
        preset = PRESETS.get(name.upper())
        if preset is None:
            raise Refuse(f"{where}: unknown preset {name!r}", "one of " + ", ".join(PRESETS))
        group = {"targets": group, **preset}
    if not isinstance(group, Mapping):
        raise Refuse(f"{where} must be an object, not {group!r:.80}")
    targets = string_list(group, "targets")
    if not targets:
        raise Refuse(f"{where}: targets is missing")
    weights = group.get("weights")
    if weights is None:
        if group.get("input_activations") or group.get("output_activations"):
            raise Refuse(f"{where} quantizes activations of layers whose weights are not quantized")
        return None, None, targets
    weight = tensor_quant(f"{where}.weights", weights, activation=False)
    inputs, outputs = (
        None if group.get(key) is None else tensor_quant(f"{where}.{key}", group[key], activation=True)
        for key in ("input_activations", "output_activations")
    )
    form = group.get("format") or (top if top != "mixed-precision" else None) or _inferred_format(weight, inputs)
    storage = _check_format(form)
    if storage in ("mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized"):
        weight = attrs.evolve(weight, scale_dtype="e8m0", scale_rule="mx_even")
    _check_storage(where, storage, weight)
    return QuantScheme(weight, inputs, outputs), storage, targets


def _inferred_format(weight: TensorQuant, inputs: TensorQuant | None) -> str:
    """The form that the library itself would choose, in its order of preference."""
    if weight.element.kind == "float":
        if weight.bits < 8:
            return {16: "nvfp4-pack-quantized"}.get(weight.group_size or 0, f"mxfp{weight.bits}-pack-quantized")
        if weight.scale_dtype == "e8m0":
            return "mxfp8-quantized"
        return "float-quantized" if inputs is not None else "naive-quantized"
    return "int-quantized" if inputs is not None else "pack-quantized"


def _check_storage(where: str, storage: str, weight: TensorQuant) -> None:
    whole = weight.element.kind == "int"
    wanted = {
        "pack-quantized": whole,
        "int-quantized": whole,
        "naive-quantized": whole or weight.bits == 8,
        "float-quantized": weight.dtype == "fp8_e4m3",
        "nvfp4-pack-quantized": weight.format == "nvfp4",
        "mxfp4-pack-quantized": weight.format == "mxfp4",
        "mxfp6-pack-quantized": weight.format == "mxfp6_e2m3",
        "mxfp8-quantized": weight.format == "mxfp8",
    }
    if not wanted[storage]:
        raise Refuse(f"{where}: format {storage} cannot hold {weight.dtype} with granularity {weight.granularity}")


def tensor_quant(where: str, args: Any, *, activation: bool) -> TensorQuant:
    """The library's ``QuantizationArgs`` as a :class:`TensorQuant`.

    Raises:
        Refuse: something in it cannot be honoured.
    """
    if not isinstance(args, Mapping):
        raise Refuse(f"{where} must be an object, not {args!r:.80}")
    bits, kind = integer(args, "num_bits", 8), str(args.get("type", "int")).lower()
    if kind == "float":
        dtype = _FLOATS.get(bits)
    else:
        dtype = f"int{bits}" if kind == "int" and bits in range(2, 9) else None
    if dtype is None:
        raise Refuse(f"{where}: {bits}-bit {kind} is not supported", "integers of 2 to 8 bits, floats of 4, 6 and 8")
    fields = _granularity(where, args, activation=activation)
    symmetric, dynamic = args.get("symmetric", True), args.get("dynamic", False)
    if dynamic not in (True, False, "local"):
        raise Refuse(f"{where}: dynamic is {dynamic!r}; it is true, false or 'local'")
    if dynamic and not activation:
        raise Refuse(f"{where}: weights with scales computed at run time are not supported")
    if args.get("actorder") in ("group", "dynamic", True):
        fields["g_idx"] = True
    scale = args.get("scale_dtype")
    if scale is not None:
        named = _SCALE_DTYPES.get(str(scale).removeprefix("torch."))
        if named is None:
            raise Refuse(f"{where}: scale_dtype {scale!r} is not supported", ", ".join(_SCALE_DTYPES))
        fields["scale_dtype"] = named
    if fields.get("group_size") == 32 and kind == "float" and (bits < 8 or fields.get("scale_dtype") == "e8m0"):
        fields |= {"scale_dtype": "e8m0", "scale_rule": "mx_even"}
    elif kind == "int":
        fields["scale_rule"] = "full_range"
    if args.get("strategy") == "tensor_group":
        fields |= {"scale_dtype": "fp8_e4m3", "second_scale": True}
        dynamic = activation
    try:
        return TensorQuant(dtype=dtype, dynamic=bool(dynamic), zero_point=None if symmetric else "int", **fields)
    except DeclarationError as error:
        raise Refuse(f"{where}: {error}") from None


def _granularity(where: str, args: Mapping[str, Any], *, activation: bool) -> dict[str, Any]:
    strategy, size, block = args.get("strategy"), args.get("group_size"), args.get("block_structure")
    if strategy is None:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = str(strategy).lower()
    if isinstance(block, str):  # "128x128", as older versions wrote it
        block = [int(part) if part.isdigit() else part for part in block.split("x")]
    if strategy in ("group", "tensor_group"):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise Refuse(f"{where}: strategy {strategy} needs a positive group_size, not {size!r}")
        return {"granularity": "group", "group_size": size}
    if strategy == "block":
        if not isinstance(block, list) or len(block) != 2 or not all(isinstance(b, int) and b > 0 for b in block):
            raise Refuse(f"{where}: strategy block needs block_structure [rows, columns], not {block!r}")
        if activation and block[0] == 1:
            return {"granularity": "group", "group_size": block[1]}
        return {"granularity": "block", "block_shape": (block[0], block[1])}
    allowed = ("tensor", "token") if activation else ("tensor", "channel")
    if strategy not in allowed:
        raise Refuse(f"{where}: strategy {strategy!r} is not supported here", ", ".join((*allowed, "group")))
    return {"granularity": strategy}
