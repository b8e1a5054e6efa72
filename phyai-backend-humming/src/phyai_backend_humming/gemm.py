"""``humming.gemm.*``: the library's launcher without anything in between.

``prepare`` arranges the weight for its GPU, compiles (or finds in the library's cache) one kernel for each of a few
numbers of rows, and ``run`` is one launch, after one that quantizes the inputs where the scheme asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from phyai.dispatch.capture import capturing
from phyai.errors import CallError, CaptureError
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.quant.scheme import TensorQuant
from phyai.quant.weight import QuantizedWeight
from phyai.synthesize import torch_dtype

from phyai_backend_humming import schedules
from phyai_backend_humming.convert import Final, arrange, arranged_bias, at_real_size, take
from phyai_backend_humming.library import library
from phyai_backend_humming.locks import Locks
from phyai_backend_humming.rows import LAYOUT

_ALIGNMENT = 16

Quantize = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def rows_for(
    facts: Mapping[str, Any], params: Mapping[str, Any], bounds: tuple[int, int] | None, *, invariant: bool
) -> tuple[int, ...]:
    """The numbers of rows to compile for: those that a policy gives, else that of every call, else some in ``bounds``.

    Raises:
        CallError: the parameter ``rows`` is no list of positive numbers, or of more than one where one schedule serves.
    """
    given = params.get("rows")
    if given is None:
        fixed = dict(facts).get("shape.M")  # not there where it changes from call to call
        if invariant:
            return schedules.INVARIANT_ROWS
        return (max(1, int(fixed)),) if fixed is not None else schedules.rows_within(bounds)
    wanted = [given] if isinstance(given, int) else given
    whole = isinstance(wanted, Sequence) and all(type(m) is int and m >= 1 for m in wanted)
    if not whole or not wanted or (invariant and len(wanted) != 1):
        limit = "one positive number" if invariant else "a list of positive numbers"
        raise CallError(f"rows={given!r}: it must be {limit}, such as [50]")
    return tuple(wanted)


def checked(weights: Mapping[str, Any], dtype: torch.dtype) -> tuple[QuantizedWeight, torch.Tensor | None]:
    """The weight and the bias, with everything that the library would take unseen.

    Raises:
        CallError: a tensor is missing, misshapen, of another type, or elsewhere.
    """
    weight, bias = weights.get("weight"), weights.get("bias")
    if not isinstance(weight, QuantizedWeight) or weight.layout != LAYOUT:
        layout = weight.layout if isinstance(weight, QuantizedWeight) else type(weight).__name__
        raise CallError(f"a Humming kernel reads a quantized weight in layout {LAYOUT!r}, given: {layout}")
    n, k = weight.shape
    quant = weight.scheme.weight
    wanted: dict[str, tuple[int, ...]] = {"scale": quant.scale_shape(n, k)}
    if quant.zero_point is not None:
        wanted["zero_point"] = quant.scale_shape(n, k)
    if quant.second_scale:
        wanted["second_scale"] = ()
    if weight.scheme.input is not None and not weight.scheme.input.dynamic:
        wanted["input_scale"] = ()
    for name, shape in wanted.items():
        tensor = getattr(weight, name)
        if tensor is None:
            raise CallError(f"the weight [{n}, {k}] of scheme {weight.scheme.name} has no {name}")
        if tuple(tensor.shape) != shape:
            raise CallError(f"{name} of the weight [{n}, {k}] has shape {tuple(tensor.shape)}; {shape} is right")
    if bias is not None and (tuple(bias.shape) != (n,) or bias.dtype != dtype):
        raise CallError(f"the bias is {bias.dtype} {tuple(bias.shape)}; {dtype} {(n,)} is right")
    device = weight.scale.device
    for name, tensor in {**weight.tensors(), **({} if bias is None else {"bias": bias})}.items():
        if tensor.device != device and not name.endswith("config"):
            raise CallError(f"{name} is on {tensor.device}, the scales are on {device}")
    return weight, bias


def static_scales(weight: QuantizedWeight) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The scale ``[1]`` that static inputs become codes by, and the one that codes are multiplied by, which is rounded
    as the inputs are; None for inputs that are quantized by their values, or not at all."""
    quant = weight.scheme.input
    if quant is None or quant.dynamic:
        return None
    from phyai_backend_humming.activation import Rounding

    rounding = Rounding.of(quant)
    stored = weight.input_scale.to(torch.float32).reshape(1)
    return stored, 1.0 / (rounding.high / (stored * rounding.high)) if rounding.inverse else stored


def quantizer(
    quant: TensorQuant | None, k: int, static: tuple[torch.Tensor, torch.Tensor] | None = None
) -> Quantize | None:
    """What makes codes and scales of contiguous inputs ``[M, K]``; None for 16-bit ones."""
    if quant is None:
        return None
    from phyai_backend_humming.activation import Rounding, quantize

    rounding = Rounding.of(quant)
    size = quant.group_size or k
    if static is None:

        def by_values(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            codes = rounding.empty(rows)
            scales = torch.empty(rows.shape[0], k // size, dtype=torch.float32, device=rows.device)
            quantize(rows, size, rounding, codes, scales)
            return codes, scales

        return by_values
    stored, read = static

    def by_stored(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = rounding.empty(rows)
        quantize(rows, size, rounding, codes, stored, stored)
        return codes, read

    return by_stored


def prepare(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *,
    invariant: bool = False,
) -> Prepared:  # fmt: skip
    dtype = torch_dtype(str(facts["dtype.y"]))
    weight, bias = checked(weights, dtype)
    device = weight.scale.device
    static = static_scales(weight)
    quantize = quantizer(weight.scheme.input, weight.shape[1], static)
    final = take(weight, dtype)
    config = at_real_size(final.config, *weight.shape, bias=bias is not None)
    kernels = schedules.compile_schedules(
        config, rows_for(facts, params, resources.rows, invariant=invariant), invariant=invariant,
        device=device.index or 0,
    )  # fmt: skip
    locks: Locks = resources.shared(("humming.locks", str(device)), lambda: Locks(device))
    launched: set[int] = resources.shared(("humming.launched", str(device)), set)
    arranged = None if bias is None else arranged_bias(final, bias)
    return Prepared(
        _launcher(weight, final, arranged, kernels, locks, launched, quantize, dtype),
        refresh=_refresh(final, arranged, static, dtype),
    )


prepare_batch_invariant = functools.partial(prepare, invariant=True)


def _launcher(
    weight: QuantizedWeight, final: Final, bias: torch.Tensor | None, kernels: schedules.Schedules, locks: Locks,
    launched: set[int], quantize: Quantize | None, dtype: torch.dtype,
) -> Callable[..., torch.Tensor]:  # fmt: skip
    (n, k), device = weight.shape, weight.scale.device
    launch = library().launcher()
    stream_of = torch.cuda.current_stream
    configs, index_of = kernels.configs, kernels.index
    ids = [int(config[0]) for config in configs]
    w, scale = final.tensors["weight"], final.tensors["weight_scale"]
    scale_2, zero_point = final.tensors.get("weight_scale_2"), final.tensors.get("zero_point")
    unchecked = [True] * len(configs)  # the library checks the first launch of every kernel

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        if x.shape[-1] != k or x.dtype != dtype or x.device != device:
            raise CallError(
                f"x is {x.dtype} {tuple(x.shape)} on {x.device}; "
                f"this kernel was prepared for {dtype} with K={k} on {device}"
            )
        shape = (*x.shape[:-1], n)
        m = x.numel() // k
        if m == 0:
            return x.new_empty(shape) if out is None else out
        rows = x.reshape(m, k).contiguous()
        direct = out is not None and out.is_contiguous() and not out.data_ptr() % _ALIGNMENT
        y = out.view(m, n) if direct and out is not None else torch.empty(m, n, dtype=dtype, device=x.device)
        if quantize is not None:
            codes, input_scale = quantize(rows)
        else:
            codes, input_scale = rows if not rows.data_ptr() % _ALIGNMENT else rows.clone(), None
        i = index_of(m)
        if unchecked[i] and ids[i] not in launched and capturing():  # its first launch loads it
            raise CaptureError(
                f"the Humming kernel for {m} rows of a product with N={n} and K={k} has not run yet; "
                "run the same call once before the capture"
            )
        launch(
            configs[i], codes, w, scale, scale_2, input_scale, None, zero_point, bias, y, None, None, None, None,
            locks.of(stream_of(x.device).cuda_stream), 1, 0, unchecked[i],
        )  # fmt: skip
        if unchecked[i]:
            unchecked[i] = False
            launched.add(ids[i])
        if out is None:
            return y.view(shape)
        if not direct:
            out.copy_(y.view(shape))
        return out

    return run


def _refresh(
    final: Final, bias: torch.Tensor | None, static: tuple[torch.Tensor, torch.Tensor] | None, dtype: torch.dtype
) -> Callable[[Mapping[str, Any]], None]:
    def refresh(new: Mapping[str, Any]) -> None:
        weight, new_bias = checked(new, dtype)
        other = arrange(weight, dtype)
        if other.config.to_str() != final.config.to_str():
            raise CallError("the new weight's numbers ask for another kernel than the old one's; bind the site again")
        for name, tensor in final.tensors.items():
            tensor.copy_(other.tensors[name])
        if bias is not None and new_bias is not None:
            bias.copy_(arranged_bias(final, new_bias))
        for held, scale in zip(static or (), static_scales(weight) or (), strict=True):
            held.copy_(scale)

    return refresh
