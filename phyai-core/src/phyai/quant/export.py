"""Writing quantized layers as compressed-tensors stores them: the other direction of its importer.

What the library's format cannot say exactly is refused. Every description is read back by the importer before
it is used, so that a scheme that would come back as another one is never written.

>>> from phyai.quant.scheme import QuantScheme, TensorQuant
>>> group = describe(QuantScheme(TensorQuant("int4", "group", group_size=128, scale_rule="full_range")))
>>> group["format"], group["weights"]["num_bits"], group["weights"]["group_size"]
('pack-quantized', 4, 128)
>>> describe(QuantScheme(TensorQuant("fp8_e5m2", "channel")))
Traceback (most recent call last):
...
phyai.errors.CheckpointError: compressed-tensors has no fp8_e5m2; it has int2 to int8, fp4_e2m1, fp6_e2m3 and fp8_e4m3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from phyai.errors import CheckpointError
from phyai.quant.importers.base import Refuse
from phyai.quant.importers.compressed_tensors import tensor_quant
from phyai.quant.realize.bits import pack_bits
from phyai.quant.realize.codes import code_patterns
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch

#: The version whose way of packing is written: integers of any width lie densely in int32 words.
VERSION = "0.20.0"
_FLOATS = ("fp4_e2m1", "fp6_e2m3", "fp8_e4m3")
_SCALE_DTYPES = {"e8m0": "torch.uint8", "fp8_e4m3": "torch.float8_e4m3fn"}
_BY_FORMAT = {
    "nvfp4": "nvfp4-pack-quantized", "mxfp4": "mxfp4-pack-quantized", "mxfp6_e2m3": "mxfp6-pack-quantized",
    "mxfp8": "mxfp8-quantized",
}  # fmt: skip


def describe(scheme: QuantScheme) -> dict[str, Any]:
    """One entry of ``config_groups`` without its targets.

    Raises:
        CheckpointError: compressed-tensors cannot say the scheme.
    """
    if scheme.output is not None or scheme.pre_scale:
        what = "a quantized output" if scheme.output is not None else "a vector that multiplies the input"
        raise CheckpointError(f"compressed-tensors stores no {what} in the forms that are written here")
    group = {
        "weights": _args(scheme.weight, activation=False),
        "input_activations": None if scheme.input is None else _args(scheme.input, activation=True),
        "output_activations": None,
        "format": _format(scheme),
    }
    _require_read_back(scheme, group)
    return group


def _format(scheme: QuantScheme) -> str:
    weight = scheme.weight
    if weight.format in _BY_FORMAT:
        return _BY_FORMAT[weight.format]
    if weight.element.kind == "float":
        if weight.bits < 8:
            raise CheckpointError(
                f"compressed-tensors stores {weight.dtype} as {' or '.join(_BY_FORMAT)} only, with the scales of those"
            )
        return "float-quantized" if scheme.input is not None else "naive-quantized"
    return "int-quantized" if scheme.input is not None and weight.bits == 8 else "pack-quantized"


def _args(quant: TensorQuant, *, activation: bool) -> dict[str, Any]:
    if quant.dtype not in _FLOATS and quant.element.kind != "int":
        raise CheckpointError(
            f"compressed-tensors has no {quant.dtype}; it has int2 to int8, {', '.join(_FLOATS[:-1])} and {_FLOATS[-1]}"
        )
    if quant.zero_point == "float" or quant.g_idx:
        what = "floating zero points" if quant.zero_point else "a group index without calibration"
        raise CheckpointError(f"compressed-tensors cannot store {what}")
    if activation and not quant.dynamic:
        raise CheckpointError("a static input needs calibrated scales, which are not there")
    if activation and quant.second_scale:
        raise CheckpointError(
            f"compressed-tensors stores the second scale of {quant.format} inputs, which needs calibration data; "
            "write 'input: null', or an input format without one such as mxfp4 or fp8_e4m3"
        )
    args: dict[str, Any] = {
        "num_bits": quant.bits,
        "type": "float" if quant.element.kind == "float" else "int",
        "strategy": "tensor_group" if quant.second_scale else quant.granularity,
        "symmetric": quant.symmetric,
        "dynamic": quant.dynamic,
    }
    if quant.group_size is not None:
        args["group_size"] = quant.group_size
    if quant.block_shape is not None:
        args["block_structure"] = list(quant.block_shape)
    if quant.scale_dtype in _SCALE_DTYPES:
        args["scale_dtype"] = _SCALE_DTYPES[quant.scale_dtype]
    return args


def _require_read_back(scheme: QuantScheme, group: Mapping[str, Any]) -> None:
    for what, key, quant in (
        ("weight", "weights", scheme.weight), ("input", "input_activations", scheme.input)
    ):  # fmt: skip
        if quant is None:
            continue
        try:
            read = tensor_quant(key, group[key], activation=key != "weights")
        except Refuse as refuse:
            raise CheckpointError(
                f"compressed-tensors cannot say the {what} of {scheme.name}: {refuse.reason}"
            ) from None
        if quant.scale_dtype in ("fp32", "bf16", "fp16"):  # the stored tensor's own type says it
            read = attrs.evolve(read, scale_dtype=quant.scale_dtype)
        if read != quant:
            names = [f.name for f in attrs.fields(TensorQuant) if getattr(read, f.name) != getattr(quant, f.name)]
            wanted = ", ".join(f"{name}={getattr(quant, name)}" for name in names)
            given = ", ".join(f"{name}={getattr(read, name)}" for name in names)
            raise CheckpointError(
                f"compressed-tensors cannot say {wanted} of the {what} of {scheme.name}; it would be read as {given}"
            )


def require_expressible(scheme: QuantScheme, shape: tuple[int, int]) -> None:
    """Refuse what compressed-tensors cannot hold of a layer of this shape.

    Raises:
        CheckpointError: saying what, and what would work.
    """
    describe(scheme)
    for what, quant in (("weight", scheme.weight), ("input", scheme.input)):
        size = None if quant is None else quant.group_size
        if size is not None and shape[1] % size:
            raise CheckpointError(
                f"its {shape[1]} inputs are no multiple of the {what}'s group_size {size}, which compressed-tensors "
                "asks for; choose a group size that divides them, a scale per channel, or leave the layer out"
            )


def config(groups: Sequence[tuple[QuantScheme, Sequence[str]]], ignore: Sequence[str]) -> dict[str, Any]:
    """The ``quantization_config`` of a checkpoint whose layers of each scheme have these names.

    ``ignore`` are the linear layers that keep their precision.
    """
    described = [{"targets": list(names), **describe(scheme)} for scheme, names in groups]
    formats = {group["format"] for group in described}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": {f"group_{i}": group for i, group in enumerate(described)},
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "version": VERSION,
    }


def encode(weight: QuantizedWeight) -> dict[str, torch.Tensor]:
    """The tensors of a plain weight as compressed-tensors stores them, by the suffix of their names."""
    import torch

    quant, (n, k) = weight.scheme.weight, weight.shape
    form = _format(weight.scheme)
    tensors: dict[str, torch.Tensor] = {}
    if form == "pack-quantized":
        half = 1 << (quant.bits - 1)
        tensors["weight_packed"] = _words(code_patterns(weight.codes, quant.dtype, k) ^ half, quant.bits)
        tensors["weight_shape"] = torch.tensor([n, k], dtype=torch.int64)
    elif quant.bits < 8:
        tensors["weight_packed"] = weight.codes
    else:
        tensors["weight"] = weight.codes
    whole = quant.granularity == "tensor"
    tensors["weight_scale"] = weight.scale.reshape(1) if whole else weight.scale
    if weight.second_scale is not None:
        tensors["weight_global_scale"] = (1.0 / weight.second_scale).to(torch.float32).reshape(1)
    if weight.zero_point is not None:
        tensors["weight_zero_point"] = _zero_point(weight, packed=form == "pack-quantized" and not whole)
    return {suffix: tensor.contiguous() for suffix, tensor in tensors.items()}


def _zero_point(weight: QuantizedWeight, *, packed: bool) -> torch.Tensor:
    """int8 as the scales; of a packed weight, packed along the outputs."""
    import torch

    quant, zero = weight.scheme.weight, weight.zero_point
    if not packed:
        codes: torch.Tensor = zero.reshape(1) if quant.granularity == "tensor" else zero
        return codes.to(torch.int8)
    half = 1 << (quant.bits - 1)
    return _words((zero + half).to(torch.uint8).t().contiguous(), quant.bits).t()


def _words(patterns: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes ``[..., K]`` (uint8) as int32 words along K, dense, lowest bits first."""
    import torch

    data = pack_bits(patterns.contiguous(), bits)
    padded = torch.nn.functional.pad(data, (0, -data.shape[-1] % 4))
    return padded.clone(memory_format=torch.contiguous_format).view(torch.int32)  # strides of one row may be anything
