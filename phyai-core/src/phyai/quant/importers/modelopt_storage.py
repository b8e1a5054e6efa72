"""How ModelOpt stores a layer, algorithm by algorithm.

| tensor | holds |
| --- | --- |
| ``weight`` | fp8 or int8 ``[N, K]``; fp4 uint8 ``[N, K/2]``, low nibble first; int4 uint8 ``[N/2, K]``: output row 2i in the low nibble, 2i + 1 in the high, two's complement |
| ``weight_scale`` | float32: one number, ``[N]``, ``[N, K/group]``; blocks ``[ceil(N/b), 1, ceil(K/b), 1]`` (one number when there is one block); fp8 or e8m0 bytes for fp4 and mx |
| ``weight_scale_2`` | NVFP4: float32 that MULTIPLIES; W4A8_AWQ: the range of the fp8 product, no part of the weight |
| ``input_scale`` | float32: of a static input; of NVFP4 the second scale, which multiplies |
| ``pre_quant_scale`` | ``[K]``, multiplies the input; announced nowhere for SmoothQuant |
"""  # noqa: E501

from __future__ import annotations

import attrs

from phyai.quant.scheme import QuantScheme
from phyai.quant.storage import (
    FLOAT_SCALES,
    PLAIN_DTYPES,
    LayerTensors,
    Storage,
    StoredLayer,
    scalar_shapes,
    with_scale_dtype,
)

_DECODE = "phyai.quant.realize.modelopt:"


def _finish(layer: LayerTensors, scheme: QuantScheme, n: int, k: int, storage: str) -> StoredLayer:
    """Take what may stand beside any weight: a pre-scale and the input's scale."""
    pre = layer.take_optional("pre_quant_scale", "pre_scale", dtypes=PLAIN_DTYPES, shapes=[(k,), (1, k)])
    if pre is not None:
        scheme = attrs.evolve(scheme, pre_scale=True)
    if scheme.input is not None and scheme.input.granularity == "tensor" and layer.has("input_scale"):
        scheme = attrs.evolve(scheme, input=attrs.evolve(scheme.input, dynamic=False))
    if scheme.input is not None and (scheme.input.second_scale or not scheme.input.dynamic):
        layer.take("input_scale", "input_scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
    return layer.finish((n, k), scheme, storage)


def _fp8(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    n, k = layer.take("weight", "weight", dtypes=("F8_E4M3",), ndim=2).shape
    scale = layer.take("weight_scale", "scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
    return _finish(layer, with_scale_dtype(scheme, scale), n, k, "FP8")


def _per_channel(name: str, dtype: str) -> Storage:
    def check(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
        n, k = layer.take("weight", "weight", dtypes=(dtype,), ndim=2).shape
        scale = layer.take("weight_scale", "scale", dtypes=FLOAT_SCALES, shapes=[(n,), (n, 1)])
        return _finish(layer, with_scale_dtype(scheme, scale), n, k, name)

    return Storage(name, check, _DECODE + "codes")


def _fp8_block(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    n, k = layer.take("weight", "weight", dtypes=("F8_E4M3",), ndim=2).shape
    rows, columns = scheme.weight.scale_shape(n, k)
    shapes: list[tuple[int, ...]] = [(rows, 1, columns, 1), (rows, columns)]
    if rows == 1:  # leading dimensions of size one are squeezed away
        shapes += [(1, columns, 1), (columns, 1), (columns,)]
    if columns == 1:
        shapes += [(rows, 1), (rows,)]
    if rows == columns == 1:
        shapes += scalar_shapes()
    scale = layer.take("weight_scale", "scale", dtypes=FLOAT_SCALES, shapes=shapes)
    return _finish(layer, with_scale_dtype(scheme, scale), n, k, "FP8_BLOCK")


def _int4(name: str) -> Storage:
    def check(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
        half, k = layer.take("weight", "weight", dtypes=("U8",), ndim=2).shape
        n = 2 * half
        scheme = _take_groups(layer, scheme, n, k, FLOAT_SCALES, sized=name == "INT4")
        if scheme.input is not None:  # W4A8: the range of the fp8 product, which does not change the weight
            layer.take("weight_scale_2", "product_scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
        return _finish(layer, scheme, n, k, name)

    return Storage(name, check, _DECODE + "int4")


def _take_groups(
    layer: LayerTensors, scheme: QuantScheme, n: int, k: int, dtypes: tuple[str, ...], *, sized: bool
) -> QuantScheme:
    """Take the scales of groups; where the configuration does not say the group's size, they do."""
    if sized:
        scale = layer.take("weight_scale", "scale", dtypes=dtypes, shapes=[scheme.weight.scale_shape(n, k)])
        return with_scale_dtype(scheme, scale)
    scale = layer.take("weight_scale", "scale", dtypes=dtypes, ndim=2)
    if scale.shape[0] != n or scale.shape[1] < 1 or k % scale.shape[1]:
        raise layer.error("weight_scale", f"has shape {list(scale.shape)}; it must be [{n}, {k} / group]")
    size = k // scale.shape[1]
    if size != scheme.weight.group_size:
        layer.notes.append(f"the configuration does not say the group size; the scales say {size}")
        weight = attrs.evolve(scheme.weight, group_size=size)
        inputs = scheme.input
        if inputs is not None and inputs.group_size is not None:
            inputs = attrs.evolve(inputs, group_size=size)
        scheme = attrs.evolve(scheme, weight=weight, input=inputs)
    return with_scale_dtype(scheme, scale)


def _nvfp4(name: str) -> Storage:
    def check(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
        n, half = layer.take("weight", "weight", dtypes=("U8",), ndim=2).shape
        k = 2 * half
        scheme = _take_groups(layer, scheme, n, k, ("F8_E4M3",), sized=name == "NVFP4")
        layer.take("weight_scale_2", "second_scale", dtypes=FLOAT_SCALES, shapes=scalar_shapes())
        return _finish(layer, scheme, n, k, name)

    return Storage(name, check, _DECODE + "codes")


def _mxfp4(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    n, half = layer.take("weight", "weight", dtypes=("U8",), ndim=2).shape
    shapes = [scheme.weight.scale_shape(n, 2 * half)]
    layer.take("weight_scale", "scale", dtypes=("U8", "F8_E8M0"), shapes=shapes)
    return _finish(layer, scheme, n, 2 * half, "MXFP4")


def _mxfp8(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    n, k = layer.take("weight", "weight", dtypes=("F8_E4M3",), ndim=2).shape
    shapes = [scheme.weight.scale_shape(n, k)]
    layer.take("weight_scale", "scale", dtypes=("U8", "F8_E8M0"), shapes=shapes)
    return _finish(layer, scheme, n, k, "MXFP8")


#: By the names that the importer's algorithms use.
STORAGES: dict[str, Storage] = {
    storage.name: storage
    for storage in (
        Storage("FP8", _fp8, _DECODE + "codes"),
        _per_channel("FP8_PER_CHANNEL", "F8_E4M3"),
        Storage("FP8_BLOCK", _fp8_block, _DECODE + "codes"),
        _per_channel("INT8", "I8"),
        _int4("INT4"),
        _int4("INT4_ANY_GROUP"),
        _nvfp4("NVFP4"),
        _nvfp4("NVFP4_ANY_GROUP"),
        Storage("MXFP4", _mxfp4, _DECODE + "codes"),
        Storage("MXFP8", _mxfp8, _DECODE + "codes"),
    )
}
