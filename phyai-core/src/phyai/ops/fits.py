"""Argument specs whose parts agree: each function gives the nearest spec that a call of its ops can have.

>>> from phyai.ops.conv1d import OP
>>> spec = convolution(ArgSpec("wide", {"B": 1, "C": 3, "C_group": 2, "O": 5, "L": 9, "L_out": 1, "kernel": 3},
...                            attrs={"groups": 2}))
>>> spec.dims["C"], spec.dims["O"], spec.dims["L_out"]
(4, 6, 7)
"""

from __future__ import annotations

import math

from attrs import evolve

from phyai.op import ArgSpec


def _with(spec: ArgSpec, **dims: int) -> ArgSpec:
    return evolve(spec, dims={**spec.dims, **dims})


def _up(value: int, factor: int) -> int:
    """The multiple of ``factor`` at or above ``value``, at least ``factor``."""
    return max(1, -(-value // factor)) * factor


def convolution(spec: ArgSpec) -> ArgSpec:
    """Channels are whole groups, the input covers the kernel, and output lengths follow."""
    dims = dict(spec.dims)
    groups = int(spec.attrs.get("groups") or 1)
    dims["C"], dims["O"] = dims["C_group"] * groups, _up(dims["O"], groups)
    axes = (("L", "kernel"),) if "L" in dims else (("T", "kernel_t"), ("H", "kernel_h"), ("W", "kernel_w"))
    for axis, kernel in axes:
        if axis not in dims:
            continue
        stride, padding, dilation = (_of_axis(spec, name, axis) for name in ("stride", "padding", "dilation"))
        reach = dilation * (dims[kernel] - 1) + 1
        dims[axis] = max(dims[axis], reach - 2 * padding, 1)
        dims[f"{axis}_out"] = (dims[axis] + 2 * padding - reach) // stride + 1
    return evolve(spec, dims=dims)


def patch_embedding(spec: ArgSpec) -> ArgSpec:
    """An image has one whole patch at least, and a position for each."""
    patch = spec.dims["patch"]
    height, width = (max(spec.dims[axis], patch) for axis in ("height", "width"))
    return _with(spec, height=height, width=width, patches=(height // patch) * (width // patch))


def _of_axis(spec: ArgSpec, name: str, axis: str) -> int:
    own = spec.attrs.get(f"{name}_t") if axis == "T" else None
    value = own if own is not None else spec.attrs.get(name)
    return int(value) if value is not None else int(name != "padding")


def _heads(spec: ArgSpec) -> ArgSpec:
    return _with(spec, heads=_up(spec.dims["heads"], spec.dims["kv_heads"]))


def attention(spec: ArgSpec) -> ArgSpec:
    """Heads are a multiple of kv_heads; a ragged call has boundaries and no mask, a padded one no boundaries."""
    spec = _heads(spec)
    if spec.attrs.get("layout") != "ragged":
        boundaries = ("cu_seqlens_q", "cu_seqlens_k")
        kept = {name: dtype for name, dtype in spec.dtypes.items() if name not in boundaries}
        dims = {name: size for name, size in spec.dims.items() if name != "R"}
        return evolve(spec, dims=dims, dtypes=kept, present=tuple(n for n in spec.present if n not in boundaries))
    dtypes = {name: dtype for name, dtype in spec.dtypes.items() if name != "mask"}
    dims = {**spec.dims, "B": 1, "R": max(1, spec.dims.get("R", 1))}
    return evolve(spec, dims=dims, dtypes=dtypes, present=("cu_seqlens_q", "cu_seqlens_k"))


def attention_paged(spec: ArgSpec) -> ArgSpec:
    """Heads are a multiple of kv_heads, and entries name different pages: one for every request with single_page."""
    spec = _heads(spec)
    requests, entries = spec.dims["B"], spec.dims["entries"]
    if spec.dims["T"] or entries:
        requests = max(1, requests)
    if spec.attrs.get("single_page"):
        entries = requests
    return _with(spec, B=requests, entries=entries, pages=max(1, spec.dims["pages"], entries))


def group_norm(spec: ArgSpec) -> ArgSpec:
    """Channels are whole groups."""
    return _with(spec, C=_up(spec.dims["C"], int(spec.attrs.get("groups") or 1)))


def condition_rows(spec: ArgSpec) -> ArgSpec:
    """The rows of the condition divide those that they apply to."""
    rows, condition = spec.dims["M"], spec.dims["R"]
    return _with(spec, R=math.gcd(rows, condition) if rows else min(condition, 1))


def rope(spec: ArgSpec) -> ArgSpec:
    """As many positions as tokens, three for each with sections; the rotated part is even, and within the head."""
    sections = spec.attrs.get("mrope_sections")
    dims = dict(spec.dims)
    dims["rotary_dim"] = 2 * sum(map(int, sections.split(","))) if sections else dims["rotary_dim"] // 2 * 2 or 2
    dims["head_dim"] = max(dims["head_dim"], dims["rotary_dim"])
    dims["P"] = dims["M"] * (3 if sections else 1)
    return evolve(spec, dims=dims)


def embedding(spec: ArgSpec) -> ArgSpec:
    """A shard has a start and an end, ``start + V`` at most."""
    start, end = spec.attrs.get("start"), spec.attrs.get("end")
    if start is None and end is None:
        return spec
    start = int(start if start is not None else max(0, int(end or 0) - spec.dims["V"]))
    last = start + spec.dims["V"]
    end = last if end is None else min(max(int(end), start + 1), last)
    return evolve(spec, attrs={**spec.attrs, "start": start, "end": end})


def kv_write(spec: ArgSpec) -> ArgSpec:
    """The cache has a slot for every row."""
    slots_per_page = spec.dims["page_size"]
    return _with(spec, pages=max(spec.dims["pages"], -(-spec.dims["T"] // slots_per_page)))


def quantize_activation(spec: ArgSpec) -> ArgSpec:
    """Codes have the format's dtype, scales their granularity's shape, and a static scale goes with ``tensor`` only."""
    attrs = dict(spec.attrs)
    granularity = attrs.get("granularity", "token")
    dims = dict(spec.dims)
    dims["S"], dims["G"] = 1 if granularity == "tensor" else dims["M"], 1
    if granularity == "group":
        size = attrs["group_size"] = int(attrs.get("group_size") or dims["K"])
        dims["K"] = _up(dims["K"], size)
        dims["G"] = dims["K"] // size
    else:
        attrs["group_size"] = None
    static = granularity == "tensor"
    return evolve(
        spec,
        dims=dims,
        attrs=attrs,
        dtypes={
            **{name: dtype for name, dtype in spec.dtypes.items() if static or name != "scale"},
            "codes": attrs.get("format", "fp8_e4m3"),
        },
        present=spec.present if static else (),
    )


def qkv_rope_kv_write(spec: ArgSpec) -> ArgSpec:
    """As :func:`rope` and :func:`kv_write`; the projection's outputs and the attributes follow from the heads."""
    dims = kv_write(spec).dims
    rotary = min(dims["rotary_dim"], dims["head_dim"]) // 2 * 2 or 2
    dims = {**dims, "rotary_dim": rotary, "head_dim": max(dims["head_dim"], rotary)}
    dims["N"] = (dims["heads"] + 2 * dims["kv_heads"]) * dims["head_dim"]
    heads = {name: dims[name] for name in ("heads", "kv_heads", "head_dim")}
    return evolve(spec, dims=dims, attrs={**spec.attrs, **heads})
