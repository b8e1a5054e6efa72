"""torchao's tensor classes: what their fields mean, and which tensors each stores.

| class | stored |
| --- | --- |
| ``Int8Tensor`` | qdata int8 ``[N, K]``, scale and zero_point by ``block_size``; act_quant_scale, act_pre_scale |
| ``IntxUnpackedToInt8Tensor`` | the same with narrower integers in int8, zero points int8 or float |
| ``Float8Tensor`` | qdata fp8 ``[N, K]``, scale float32 by ``block_size`` |
| ``MXTensor`` | qdata fp8 or packed fp4, scale e8m0, often in cuBLAS's blocked order |
| ``NVFP4Tensor`` | qdata packed fp4, scale e4m3, per_tensor_scale, which multiplies |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from phyai.errors import DeclarationError
from phyai.quant.importers.base import Refuse
from phyai.quant.scheme import MXFP4, MXFP8, NVFP4, QuantScheme, TensorQuant
from phyai.quant.storage import (
    FLOAT_SCALES,
    PLAIN_DTYPES,
    LayerTensors,
    Storage,
    StoredLayer,
    scalar_shapes,
    with_scale_dtype,
)

CLASSES: tuple[str, ...] = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor", "MXTensor", "NVFP4Tensor")
_DECODE = "phyai.quant.realize.torchao:"
_MX_ELEMENTS = {"float8_e4m3fn": MXFP8, "float4_e2m1fn_x2": MXFP4}
_MX_RULES = {"FLOOR": "mx_floor", "RCEIL": "mx_ceil", "CEIL": "mx_ceil", "EVEN": "mx_even"}


def scheme_of(name: str, kind: str, data: Mapping[str, Any]) -> QuantScheme:
    """The scheme of one tensor from its metadata.

    Raises:
        Refuse: a field asks for what is not supported.
    """
    act = inner_of(data.get("act_quant_kwargs"))
    try:
        if kind == "Int8Tensor":
            return QuantScheme(_blocks(name, "int8", data), _int8_input(name, act))
        if kind == "Float8Tensor":
            return QuantScheme(_blocks(name, "fp8_e4m3", data), _float8_input(name, act))
        if kind == "IntxUnpackedToInt8Tensor":
            inputs = None
            if data.get("activation_quantization") == "int8_asym_per_token":
                inputs = TensorQuant("int8", "token", zero_point="int", dynamic=True)
            elif data.get("activation_quantization") is not None:
                raise Refuse(f"{name}: activation_quantization {data['activation_quantization']!r} is not supported")
            return QuantScheme(_blocks(name, str(inner_of(data.get("target_dtype"))), data), inputs)
        if kind == "MXTensor":
            return _mx(name, data, act)
        return _nvfp4(name, data, act)
    except DeclarationError as error:
        raise Refuse(f"{name}: {error}") from None


def inner_of(value: Any) -> Any:
    """The ``_data`` of torchao's JSON objects; other values are themselves."""
    return value.get("_data") if isinstance(value, Mapping) and "_data" in value else value


def _blocks(name: str, dtype: str, data: Mapping[str, Any]) -> TensorQuant:
    """A weight whose ``block_size`` is [rows, inputs]; the sizes are turned into a granularity by the storage."""
    block = data.get("block_size")
    if block in (None, []):
        return TensorQuant(dtype, "tensor")
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(b, int) and b > 0 for b in block):
        raise Refuse(f"{name}: block_size {block!r} is not supported", "[rows, inputs]")
    return TensorQuant(dtype, "block", block_shape=(block[0], block[1]))


def _int8_input(name: str, act: Any) -> TensorQuant | None:
    if act is None:
        return None
    if act.get("reduce_range"):
        raise Refuse(f"{name}: activations in a reduced range are not supported", "reduce_range: false")
    granularity = {"PerRow": "token", "PerToken": "token", "PerTensor": "tensor"}.get(_kind(act.get("granularity")))
    mapping = str(inner_of(act.get("mapping_type")) or "SYMMETRIC")
    if granularity is None or mapping not in ("SYMMETRIC", "ASYMMETRIC"):
        raise Refuse(f"{name}: activations with {act!r:.120} are not supported")
    zero, scale_rule = ("int", "amax") if mapping == "ASYMMETRIC" else (None, "full_range")
    return TensorQuant("int8", granularity, zero_point=zero, dynamic=True, scale_rule=scale_rule)


def _float8_input(name: str, act: Any) -> TensorQuant | None:
    if act is None:
        return None
    granularity = {"PerRow": "token", "PerToken": "token", "PerTensor": "tensor"}.get(_kind(act.get("granularity")))
    if granularity is None or act.get("hp_value_lb") is not None or act.get("hp_value_ub") is not None:
        raise Refuse(f"{name}: activations with {act!r:.120} are not supported")
    dtype = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}.get(
        str(inner_of(act.get("float8_dtype"))), "fp8_e4m3"
    )
    return TensorQuant(dtype, granularity, dynamic=True)


def _kind(value: Any) -> str:
    return str(value.get("_type")) if isinstance(value, Mapping) else str(value)


def _mx(name: str, data: Mapping[str, Any], act: Any) -> QuantScheme:
    element = _MX_ELEMENTS.get(str(inner_of(data.get("elem_dtype"))))
    if element is None or data.get("block_size") != 32:
        raise Refuse(
            f"{name}: MX elements {inner_of(data.get('elem_dtype'))!r} are not supported", ", ".join(_MX_ELEMENTS)
        )
    if act is None:
        return QuantScheme(element)
    inputs = _MX_ELEMENTS.get(str(inner_of(act.get("elem_dtype"))))
    scale_rule = _MX_RULES.get(str(inner_of(act.get("scaling_mode"))))
    if inputs is None or scale_rule is None or act.get("block_size") != 32:
        raise Refuse(f"{name}: MX activations with {act!r:.120} are not supported")
    return QuantScheme(element, attrs.evolve(inputs, dynamic=True, scale_rule=scale_rule))


def _nvfp4(name: str, data: Mapping[str, Any], act: Any) -> QuantScheme:
    if data.get("block_size") != 16:
        raise Refuse(f"{name}: NVFP4 with block_size {data.get('block_size')!r} is not supported", "16")
    return QuantScheme(NVFP4, None if act is None else attrs.evolve(NVFP4, dynamic=True))


def _by_block(quant: TensorQuant, n: int, k: int) -> TensorQuant:
    """The granularity that a block of this size is for a weight ``[n, k]``."""
    if quant.block_shape is None:
        return quant
    rows, columns = quant.block_shape
    if rows == n and columns == k and n > 1:
        return attrs.evolve(quant, granularity="tensor", block_shape=None)
    if rows == 1 and columns == k:
        return attrs.evolve(quant, granularity="channel", block_shape=None)
    if rows == 1:
        return attrs.evolve(quant, granularity="group", block_shape=None, group_size=columns)
    return quant


def _integers(name: str) -> Storage:
    def check(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
        n, k = layer.take("_weight_qdata", "weight", dtypes=("I8",), ndim=2).shape
        quant = _by_block(scheme.weight, n, k)
        shapes = [quant.scale_shape(n, k)]
        scale = layer.take("_weight_scale", "scale", dtypes=FLOAT_SCALES, shapes=shapes)
        zero_dtypes = ("I8", *FLOAT_SCALES)
        layer.take_optional("_weight_zero_point", "zero_point", dtypes=zero_dtypes, shapes=shapes)
        scheme = attrs.evolve(scheme, weight=quant)
        if layer.has("_weight_act_pre_scale"):
            layer.take("_weight_act_pre_scale", "pre_scale", dtypes=PLAIN_DTYPES, shapes=[(k,), (1, k)])
            scheme = attrs.evolve(scheme, pre_scale=True)
        if layer.has("_weight_act_quant_scale") and scheme.input is not None:
            layer.take("_weight_act_quant_scale", "input_scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
            static = attrs.evolve(scheme.input, granularity="tensor", dynamic=False)
            scheme = attrs.evolve(scheme, input=static)
            zeros = layer.take_optional(
                "_weight_act_quant_zero_point", "input_zero_point", dtypes=zero_dtypes, shapes=scalar_shapes()
            )
            if zeros is None and static.zero_point:
                raise layer.error("_weight_act_quant_zero_point", "is missing although the input is asymmetric")
        return layer.finish((n, k), with_scale_dtype(scheme, scale), name)

    return Storage(name, check, _DECODE + "integers")


def _float8(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    weight = layer.take("_weight_qdata", "weight", dtypes=("F8_E4M3", "F8_E5M2"), ndim=2)
    n, k = weight.shape
    quant = attrs.evolve(_by_block(scheme.weight, n, k), dtype={"F8_E5M2": "fp8_e5m2"}.get(weight.dtype, "fp8_e4m3"))
    shapes = scalar_shapes() if quant.granularity == "tensor" else [quant.scale_shape(n, k)]
    scale = layer.take("_weight_scale", "scale", dtypes=FLOAT_SCALES, shapes=shapes)
    return layer.finish((n, k), with_scale_dtype(attrs.evolve(scheme, weight=quant), scale), "Float8Tensor")


def _blocked_shapes(scheme: QuantScheme, n: int, k: int) -> list[tuple[int, ...]]:
    """Scales row by row, or in cuBLAS's blocked order, padded to 128 rows and 4 columns."""
    rows, columns = scheme.weight.scale_shape(n, k)
    padded = -(-rows // 128) * 128 * (-(-columns // 4) * 4)
    tiles = padded // 512
    return [(rows, columns), (padded,), (tiles * 32, 16), (-(-rows // 128) * 32, -(-columns // 4) * 16)]


def _mx_tensor(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    dtypes = ("F8_E4M3",) if scheme.weight.bits == 8 else ("U8",)
    n, width = layer.take("_weight_qdata", "weight", dtypes=dtypes, ndim=2).shape
    k = width * 8 // scheme.weight.bits
    shapes = _blocked_shapes(scheme, n, k)
    layer.take("_weight_scale", "scale", dtypes=("F8_E8M0", "U8"), shapes=shapes)
    return layer.finish((n, k), scheme, "MXTensor")


def _nvfp4_tensor(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    n, half = layer.take("_weight_qdata", "weight", dtypes=("U8",), ndim=2).shape
    shapes = _blocked_shapes(scheme, n, 2 * half)
    layer.take("_weight_scale", "scale", dtypes=("F8_E4M3",), shapes=shapes)
    layer.take_optional("_weight_per_tensor_scale", "second_scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
    if scheme.input is not None:
        layer.take("_weight_act_per_tensor_scale", "input_scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
    return layer.finish((n, 2 * half), scheme, "NVFP4Tensor")


#: By tensor class.
STORAGES: dict[str, Storage] = {
    "Int8Tensor": _integers("Int8Tensor"),
    "IntxUnpackedToInt8Tensor": _integers("IntxUnpackedToInt8Tensor"),
    "Float8Tensor": Storage("Float8Tensor", _float8, _DECODE + "floats"),
    "MXTensor": Storage("MXTensor", _mx_tensor, _DECODE + "floats"),
    "NVFP4Tensor": Storage("NVFP4Tensor", _nvfp4_tensor, _DECODE + "floats"),
}
