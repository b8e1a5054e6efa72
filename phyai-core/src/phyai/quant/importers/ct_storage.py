"""How compressed-tensors stores a layer, format by format.

| tensor | holds |
| --- | --- |
| ``weight_packed`` | int32 ``[N, words]``: codes + 2^(bits-1), lowest bits first along the input; uint8: fp4, fp6 |
| ``weight`` | int8 or fp8 ``[N, K]`` in the naive forms |
| ``weight_scale`` | ``[N, groups]``, ``[N, 1]``, ``[1]``; blocks ``[ceil(N/bn), ceil(K/bk)]`` |
| ``weight_zero_point`` | naive: int8 as the scale; packed: int32 packed along the OUTPUT, ``[words, groups]`` |
| ``weight_shape`` | the logical shape, of a packed weight |
| ``weight_g_idx`` | int32 ``[K]``, with ``actorder: group`` |
| ``weight_global_scale``, ``input_global_scale`` | float32 ``[1]`` that DIVIDE |
"""

from __future__ import annotations

import functools
import re

from phyai.quant.scheme import QuantScheme
from phyai.quant.storage import FLOAT_SCALES, LayerTensors, Storage, StoredLayer, scalar_shapes, with_scale_dtype

_DECODE = "phyai.quant.realize.compressed_tensors:"
_INTEGERS = ("I8", "I16", "I32", "I64", "U8")


def _pack_quantized(layer: LayerTensors, scheme: QuantScheme, version: str | None = None) -> StoredLayer:
    packed = layer.take("weight_packed", "weight", dtypes=("I32",), ndim=2)
    shape_info = layer.take("weight_shape", "shape", dtypes=("I64", "I32"), shapes=[(2,)])
    n, k = (int(v) for v in layer.checkpoint.read_small(shape_info.name))
    bits = scheme.weight.bits
    dense, padded = -(-k * bits // 32), -(-k // (32 // bits))
    if packed.shape not in ((n, dense), (n, padded)):
        raise layer.error(
            "weight_packed", f"has shape {list(packed.shape)}; {bits}-bit [{n}, {k}] by weight_shape is [{n}, {dense}]"
        )
    per_word = None if packed.shape[1] == dense else 32 // bits
    if 32 % bits and dense == padded and k > 32 // bits:  # the width does not tell how the codes lie; the version does
        if _minor(version) is None:
            text = f"has a width that two ways of packing {bits}-bit codes share, and the configuration has no version"
            raise layer.error("weight_packed", text)
        per_word = 32 // bits if _packs_padded(version) else None
    if per_word is not None:
        layer.notes.append(f"{per_word} {bits}-bit codes a word, as versions before 0.18 packed them")
        layer.details["per_word"] = per_word
    scheme = _take_scale(layer, scheme, n, k)
    groups = scheme.weight.scale_shape(n, k)[1]
    quant = scheme.weight
    if quant.zero_point and quant.granularity in ("group", "channel"):
        words = -(-n * bits // 32) if per_word is None else -(-n // per_word)
        layer.take("weight_zero_point", "zero_point", dtypes=("I32",), shapes=[(words, groups)])
    elif quant.zero_point:
        layer.take("weight_zero_point", "zero_point", dtypes=("I8",), shapes=scalar_shapes())
    if quant.g_idx:
        layer.take("weight_g_idx", "g_idx", dtypes=("I32", "I64"), shapes=[(k,)])
    _take_input(layer, scheme)
    return layer.finish((n, k), scheme, "pack-quantized")


def _minor(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    return (int(found[1]), int(found[2])) if found else None


def _packs_padded(version: str | None) -> bool:
    """Whether codes whose width does not divide 32 lie whole in words: before 0.18."""
    return (_minor(version) or (0, 18)) < (0, 18)


def _naive(name: str) -> Storage:
    def check(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
        quant = scheme.weight
        dtypes = ("F8_E4M3",) if quant.element.kind == "float" else ("I8",)
        n, k = layer.take("weight", "weight", dtypes=dtypes, ndim=2).shape
        scheme = _take_scale(layer, scheme, n, k)
        if quant.g_idx:
            layer.take("weight_g_idx", "g_idx", dtypes=("I32", "I64"), shapes=[(k,)])
        if quant.zero_point:
            layer.take("weight_zero_point", "zero_point", dtypes=("I8",), shapes=_scale_shapes(scheme, n, k))
        _take_input(layer, scheme)
        return layer.finish((n, k), scheme, name)

    return Storage(name, check, _DECODE + "naive")


def _fp4_packed(name: str) -> Storage:
    def check(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
        n, width = layer.take("weight_packed", "weight", dtypes=("U8",), ndim=2).shape
        k = width * 8 // scheme.weight.bits
        dtypes = ("F8_E4M3",) if scheme.weight.second_scale else ("U8", "F8_E8M0")
        layer.take("weight_scale", "scale", dtypes=dtypes, shapes=[scheme.weight.scale_shape(n, k)])
        if scheme.weight.second_scale:
            layer.take("weight_global_scale", "second_scale", dtypes=("F32",), shapes=scalar_shapes())
        _take_input(layer, scheme)
        return layer.finish((n, k), scheme, name)

    return Storage(name, check, _DECODE + "fp4_packed")


def _mxfp8(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    n, k = layer.take("weight", "weight", dtypes=("F8_E4M3",), ndim=2).shape
    shapes = [scheme.weight.scale_shape(n, k)]
    layer.take("weight_scale", "scale", dtypes=("U8", "F8_E8M0"), shapes=shapes)
    _take_input(layer, scheme)
    return layer.finish((n, k), scheme, "mxfp8-quantized")


def _scale_shapes(scheme: QuantScheme, n: int, k: int) -> list[tuple[int, ...]]:
    if scheme.weight.granularity == "tensor":
        return scalar_shapes()
    shape = scheme.weight.scale_shape(n, k)
    return [shape, (n,)] if scheme.weight.granularity == "channel" else [shape]


def _take_scale(layer: LayerTensors, scheme: QuantScheme, n: int, k: int) -> QuantScheme:
    scale = layer.take("weight_scale", "scale", dtypes=FLOAT_SCALES, shapes=_scale_shapes(scheme, n, k))
    if not scheme.weight.zero_point and layer.has("weight_zero_point"):
        # older versions stored the zeros of a symmetric weight; the decoder checks that they are zeros
        dtypes = (*_INTEGERS, *FLOAT_SCALES, "F8_E4M3")
        layer.take("weight_zero_point", "zeros", dtypes=dtypes, shapes=_scale_shapes(scheme, n, k))
    return with_scale_dtype(scheme, scale)


def _take_input(layer: LayerTensors, scheme: QuantScheme) -> None:
    for prefix, quant in (("input", scheme.input), ("output", scheme.output)):
        if quant is None:
            continue
        if quant.second_scale:
            layer.take(f"{prefix}_global_scale", f"{prefix}_scale", dtypes=("F32",), shapes=scalar_shapes())
        elif not quant.dynamic:
            if quant.granularity != "tensor":
                raise layer.error(f"{prefix}_scale", f"with granularity {quant.granularity} cannot be static")
            layer.take(f"{prefix}_scale", f"{prefix}_scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
            role = f"{prefix}_zero_point"
            if quant.zero_point:
                layer.take(role, role, dtypes=("I8", *FLOAT_SCALES), shapes=scalar_shapes())
            elif layer.has(role):
                dtypes = (*_INTEGERS, *FLOAT_SCALES, "F8_E4M3")
                layer.take(role, f"{prefix}_zeros", dtypes=dtypes, shapes=scalar_shapes())


#: By the configuration's ``format``.
STORAGES: dict[str, Storage] = {
    storage.name: storage
    for storage in (
        Storage("pack-quantized", _pack_quantized, _DECODE + "pack_quantized"),
        _naive("int-quantized"),
        _naive("float-quantized"),
        _naive("naive-quantized"),
        _fp4_packed("nvfp4-pack-quantized"),
        _fp4_packed("mxfp4-pack-quantized"),
        _fp4_packed("mxfp6-pack-quantized"),
        Storage("mxfp8-quantized", _mxfp8, _DECODE + "naive"),
    )
}


def storages_of(version: str | None) -> dict[str, Storage]:
    """The storages as a version of the library writes them."""
    check = functools.partial(_pack_quantized, version=version)
    return {**STORAGES, "pack-quantized": Storage("pack-quantized", check, _DECODE + "pack_quantized")}
