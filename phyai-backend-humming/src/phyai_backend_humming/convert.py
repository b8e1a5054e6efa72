"""From the layout to what the library's kernels read: its description of a layer, its tensors, arranged for one GPU.

The library computes ``y = x @ ((code - zero_point) * scale * scale_2).T`` with x and y at their real sizes and the
weight filled up to sizes that its tiles divide: N to 128, K to 128 and at least 256, both to whole blocks or groups.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from phyai.errors import CallError
from phyai.quant.realize.bits import pack_bits
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight

from phyai_backend_humming.layout import columns, words_of
from phyai_backend_humming.library import library

_ELEMENTS: Mapping[str, str] = {"fp8_e4m3": "float8e4m3", "fp8_e5m2": "float8e5m2", "fp4_e2m1": "float4e2m1"}
_SCALES: Mapping[str, str] = {"e8m0": "float8e8m0", "fp8_e4m3": "float8e4m3"}
_INPUTS: Mapping[str, str] = {"fp8_e4m3": "float8e4m3", "int8": "int8", "int4": "int4"}
_FINAL = "final."


@attrs.frozen(eq=False)
class Final:
    """A weight as the kernels read it: the library's description of the layer, and its tensors by its names."""

    config: Any
    tensors: dict[str, torch.Tensor]


def padded_shape(quant: TensorQuant, n: int, k: int) -> tuple[int, int]:
    """N and K as the kernels see the weight."""
    block_n, block_k = quant.block_shape or (1, quant.group_size or 1)
    step_n, step_k = math.lcm(128, block_n), math.lcm(128, block_k)
    return -(-n // step_n) * step_n, max(-(-k // step_k) * step_k, math.lcm(256, step_k))


def weight_schema(quant: TensorQuant, *, float_zero_point: bool = False) -> Any:
    """The library's description of a weight."""
    block_n, block_k = quant.block_shape or (0, quant.group_size or 0)
    return library().WeightSchema(
        b_dtype=_ELEMENTS.get(quant.dtype) or f"uint{quant.bits}",
        bs_dtype=_SCALES.get(quant.scale_dtype),
        weight_scale_group_size=block_k,
        weight_scale_group_size_n=block_n,
        weight_scale_type=quant.granularity,
        weight_scale_2_type="tensor" if quant.second_scale else None,
        has_zero_point=quant.zero_point is not None,
        is_fp_zero_point=float_zero_point,
    )


def input_schema(quant: TensorQuant | None) -> Any:
    """The library's description of quantized inputs; None for 16-bit ones."""
    if quant is None:
        return None
    mode = "static_tensor" if not quant.dynamic else "dynamic_group" if quant.group_size else "dynamic_token"
    return library().InputSchema(
        a_dtype=_INPUTS[quant.dtype], input_scale_group_size=quant.group_size or 0, input_quant_mode=mode
    )


def layer_config(
    scheme: QuantScheme,
    n: int,
    k: int,
    dtype: torch.dtype,
    device: int,
    *,
    bias: bool = False,
    float_zero_point: bool = False,
    tensors: dict[str, torch.Tensor] | None = None,
    real: bool = True,
) -> Any:
    """The library's description of a layer. ``real``: with x and y at their real sizes; else as wide as the packed
    weight, which is how its tensors are arranged. Where the weight's ``tensors`` decide about it, they are read."""
    rows, inner = packed_shape(scheme.weight, n, k)
    full_n, full_k = padded_shape(scheme.weight, n, k)
    config = library().prepare_layer_config(
        rows, inner, weight_schema(scheme.weight, float_zero_point=float_zero_point), input_schema(scheme.input),
        pad_n_to_multiple=full_n, pad_k_to_multiple=full_k, has_bias=bias, torch_dtype=dtype, device=device,
        tensors=tensors,
    )  # fmt: skip
    return at_real_size(config, n, k) if real else config


def at_real_size(config: Any, n: int, k: int, *, bias: bool | None = None) -> Any:
    """The description with x and y at their real sizes."""
    changed = {"pad_shape_n": config.shape_n - n, "pad_shape_k": config.shape_k - k}
    if bias is not None:
        changed["has_bias"] = bias
    return library().LayerConfig(**{**config.to_dict(), **changed})


def packed_shape(quant: TensorQuant, n: int, k: int) -> tuple[int, int]:
    """N and K filled up to whole blocks and groups."""
    block_n = quant.block_shape[0] if quant.block_shape else 1
    return -(-n // block_n) * block_n, columns(quant, k)


def tensors_of(weight: QuantizedWeight, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], bool]:
    """The library's tensors before they are arranged, and whether zero points are floats.

    They are where a zero point lies outside the codes' range, as GPTQ's may by one; the floats hold it exactly.
    """
    quant, (n, k) = weight.scheme.weight, weight.shape
    rows, _ = packed_shape(quant, n, k)
    words = words_of(weight)
    tensors = {"weight": torch.nn.functional.pad(words, (0, 0, 0, rows - n)), "weight_scale": _scale(weight, dtype)}
    if weight.second_scale is not None:
        tensors["weight_scale_2"] = weight.second_scale.to(torch.float32).reshape(1)
    if weight.zero_point is None:
        return tensors, False
    offset = 1 << (quant.bits - 1) if quant.element.kind == "int" else 0
    zero = weight.zero_point.to(torch.int32) + offset
    outside = bool(((zero < 0) | (zero >= 1 << quant.bits)).any())
    if outside and weight.scheme.input is not None:
        raise ValueError(f"a zero point lies outside {quant.dtype}, which the kernels with 8-bit inputs cannot read")
    if outside:
        tensors["zero_point"] = zero.to(dtype)
    else:
        packed = pack_bits(zero.to(torch.uint8).T.contiguous(), quant.bits).view(torch.int32)
        tensors["zero_point"] = packed.T.contiguous()
    return tensors, outside


def _scale(weight: QuantizedWeight, dtype: torch.dtype) -> torch.Tensor:
    quant, scale = weight.scheme.weight, weight.scale
    if quant.granularity == "tensor":
        return scale.to(torch.float32).reshape(1)
    if quant.granularity == "block":
        return scale.to(torch.float32).contiguous()
    if quant.scale_dtype == "e8m0":
        return scale.view(torch.float8_e8m0fnu).contiguous()
    if quant.scale_dtype != "fp8_e4m3" and scale.dtype != dtype:
        raise ValueError(f"the scales are {scale.dtype}, the kernel reads {dtype}")
    return scale.contiguous()


def arrange(weight: QuantizedWeight, dtype: torch.dtype) -> Final:
    """The weight's tensors arranged for the GPU that it is on."""
    tensors, floats = tensors_of(weight, dtype)
    n, k = weight.shape
    device = tensors["weight"].device.index or 0
    wide = layer_config(weight.scheme, n, k, dtype, device, float_zero_point=floats, tensors=dict(tensors), real=False)
    return Final(at_real_size(wide, n, k), library().transform_tensors(wide, tensors))


def take(weight: QuantizedWeight, dtype: torch.dtype) -> Final:
    """The weight's arranged tensors, which take the place of its packed codes: one copy of a weight exists.

    Whoever prepares another kernel for the same weight gets the same tensors.

    Raises:
        CallError: it was arranged for another GPU architecture or another input dtype.
    """
    stored = weight.packed.get(f"{_FINAL}config")
    if stored is None:
        final = arrange(weight, dtype)
        described = torch.tensor(list(final.config.to_str().encode()), dtype=torch.uint8)
        weight.packed.clear()
        weight.packed.update(
            {f"{_FINAL}{name}": t for name, t in final.tensors.items()}, **{f"{_FINAL}config": described}
        )
        return final
    config = library().LayerConfig(**json.loads(bytes(stored.cpu().tolist())))
    if config.param_dtype != dtype:
        raise CallError(
            f"the weight was arranged for {config.param_dtype} inputs and cannot serve {dtype}; load it again"
        )
    held = {name.removeprefix(_FINAL): t for name, t in weight.packed.items() if name != f"{_FINAL}config"}
    return Final(config, held)


def arranged_bias(final: Final, bias: torch.Tensor) -> torch.Tensor:
    """A bias ``[N]``, filled up and arranged."""
    arranged: torch.Tensor = library().transform_bias(
        torch.nn.functional.pad(bias, (0, final.config.shape_n - bias.numel()))
    )
    return arranged
