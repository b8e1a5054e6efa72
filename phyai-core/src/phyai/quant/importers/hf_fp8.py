"""Flat FP8 configurations (``quant_method: fp8``): DeepSeek's, transformers', AutoFP8's; and ``mxfp8``.

| tensor | holds |
| --- | --- |
| ``weight`` | fp8 ``[N, K]`` |
| ``weight_scale_inv`` or ``weight_scale`` | MULTIPLIES: one number, ``[N]``, ``[N, 1]``, ``[ceil(N/bn), ceil(K/bk)]`` |
| ``input_scale`` or ``activation_scale`` | one number, with ``activation_scheme: static`` |

Without blocks, dynamic inputs have one scale per token beside ``weight_scale_inv`` (transformers) and beside scales
per output, else one for the whole tensor (AutoFP8).

The block comes from the configuration, never from dividing shapes. Writers leave weights that their block
does not divide in 16 bits without listing them, so a plain weight is taken as it is. Facts were checked
against transformers 5.24.0.
"""

from __future__ import annotations

import re
from typing import Any

import attrs

from phyai.files.safetensors_file import TensorInfo
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers.base import FoundConfig, Recognized, Refuse, method_of, rule, string_list
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.scheme import MXFP8, MXFP8_INPUT, QuantScheme, TensorQuant
from phyai.quant.storage import FLOAT_SCALES, LayerTensors, Storage, StoredLayer, scalar_shapes, with_scale_dtype

_ELEMENTS = {"e4m3": "fp8_e4m3", "e4m3fn": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "e5m2": "fp8_e5m2"}
_DECODE = "phyai.quant.realize.hf_fp8:decode"


def recognize(found: FoundConfig, checkpoint: Checkpoint) -> Recognized | None:
    """See :class:`phyai.quant.importers.base.Importer`."""
    method = method_of(found.body)
    if method not in ("fp8", "mxfp8"):
        return None
    body = found.body
    scheme = _mxfp8(body) if method == "mxfp8" else _fp8(body)
    skipped = string_list(body, "modules_to_not_convert") + string_list(body, "ignored_layers")
    rules = [r for name in dict.fromkeys(skipped) for r in _skip_rules(name)]
    notes: tuple[str, ...] = ()
    if method == "fp8" and scheme.weight.granularity == "tensor":
        notes = ("a weight with one scale per output is read per channel",)
    default = QuantRule(((),), scheme, storage=_STORAGE.name, id=method)
    return Recognized(method, QuantPlan((*rules, default)), found.source, {_STORAGE.name: _STORAGE}, None, notes)


def _skip_rules(name: str) -> list[QuantRule]:
    """As transformers reads a name: a pattern up to a module boundary, or the end of the path."""
    suffix = rule("regex", rf".*{re.escape(name)}$", None, id="skipped")
    if re.escape(name).replace(r"\.", ".") == name or re.escape(name).replace(r"\.", ".").replace(r"\-", "-") == name:
        return [rule("within", name, None, id="skipped"), suffix]
    return [rule("regex", rf"(?:{name})(?:(?<=\.)|(?=\.|$))", None, id="skipped"), suffix]


def _fp8(body: Any) -> QuantScheme:
    fmt = str(body.get("fmt", "e4m3")).lower()
    if fmt not in _ELEMENTS:
        raise Refuse(f"fmt {fmt!r} is not supported", ", ".join(_ELEMENTS))
    activation = str(body.get("activation_scheme", "dynamic")).lower()
    if activation not in ("dynamic", "static"):
        raise Refuse(f"activation_scheme {activation!r} is not supported", "dynamic or static")
    if str(body.get("expert_dtype") or "fp8") != "fp8":
        raise Refuse(f"expert_dtype {body['expert_dtype']!r}: expert tensors are not supported", "a dense model")
    dtype, block = _ELEMENTS[fmt], body.get("weight_block_size")
    power_of_two = str(body.get("scale_fmt") or "float").lower() == "ue8m0"
    rule_name = "mx_ceil" if power_of_two else "amax"
    if block is None:
        weight = TensorQuant(dtype, "tensor")
        granularity: dict[str, Any] = {"granularity": "tensor"}
    else:
        n, k = _block(block)
        weight = (
            TensorQuant(dtype, "group", group_size=k) if n == 1 else TensorQuant(dtype, "block", block_shape=(n, k))
        )
        granularity = {"granularity": "group", "group_size": k}
    if activation == "static":
        return QuantScheme(weight, TensorQuant(dtype, "tensor"))
    return QuantScheme(weight, TensorQuant(dtype, dynamic=True, scale_rule=rule_name, **granularity))


def _mxfp8(body: Any) -> QuantScheme:
    block = body.get("weight_block_size")
    if block is not None and _block(block) != (1, 32):
        raise Refuse(f"mxfp8 with weight_block_size {block!r} is not supported", "[1, 32]")
    if str(body.get("activation_scheme", "dynamic")).lower() != "dynamic":
        raise Refuse(f"mxfp8 with activation_scheme {body['activation_scheme']!r} is not supported", "dynamic")
    return QuantScheme(MXFP8, MXFP8_INPUT)


def _block(block: Any) -> tuple[int, int]:
    good = isinstance(block, list | tuple) and len(block) == 2
    if not good or not all(isinstance(b, int) and not isinstance(b, bool) and b > 0 for b in block):
        raise Refuse(f"weight_block_size must be two positive whole numbers, not {block!r}")
    return block[0], block[1]


def _check(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    quant = scheme.weight
    stored = "F8_E5M2" if quant.dtype == "fp8_e5m2" else "F8_E4M3"
    n, k = layer.take("weight", "weight", dtypes=(stored,), ndim=2).shape
    names = ("weight_scale_inv", "weight_scale")
    if layer.has(names[0]) and layer.has(names[1]):
        raise layer.error(" and ".join(names), "are both there: which one scales the weight is not said")
    if quant.granularity == "tensor":
        shapes = [*scalar_shapes(), (n,), (n, 1)]
        scale = layer.take(names, "scale", dtypes=FLOAT_SCALES, shapes=shapes)
        scheme = _per_channel(scheme, scale, n)
        if scheme.input is not None and scheme.input.dynamic and scale.name.endswith("_inv"):  # transformers' own
            scheme = attrs.evolve(scheme, input=attrs.evolve(scheme.input, granularity="token"))
    else:
        dtypes = ("U8", "F8_E8M0") if quant.scale_dtype == "e8m0" else (*FLOAT_SCALES, "F8_E8M0", "U8")
        scale = layer.take(names, "scale", dtypes=dtypes, shapes=[quant.scale_shape(n, k)])
    scheme = with_scale_dtype(scheme, scale)
    if scheme.input is not None and not scheme.input.dynamic:
        layer.take(("input_scale", "activation_scale"), "input_scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
    return layer.finish((n, k), scheme, "fp8")


def _per_channel(scheme: QuantScheme, scale: TensorInfo, n: int) -> QuantScheme:
    """Without a block the scale's shape says tensor or channel; with channels, dynamic inputs are per token."""
    if scale.shape in scalar_shapes() and (n > 1 or scale.shape != (n, 1)):
        return scheme
    channel = attrs.evolve(scheme, weight=attrs.evolve(scheme.weight, granularity="channel"))
    if scheme.input is not None and scheme.input.dynamic:
        channel = attrs.evolve(channel, input=attrs.evolve(scheme.input, granularity="token"))
    return channel


_STORAGE = Storage("fp8", _check, _DECODE)
