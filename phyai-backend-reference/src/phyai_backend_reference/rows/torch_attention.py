"""The records of torch's attention: every SDPA backend is a row, and so is its variable-length flash attention.

What each refuses is what torch 2.9 to 2.13 refuse (``sdp_utils.cpp``), checked on a CPU and on an H200.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel
from phyai.predicates import Predicate, match

from phyai_backend_reference.rows.torch import row

_HALF = ("bf16", "fp16")
_PADDED: Mapping[str, Any] = {"attrs.layout": "padded", "dtype.cu_seqlens_q": None, "dtype.cu_seqlens_k": None}
_RAGGED: Mapping[str, Any] = {
    "attrs.layout": "ragged", "dtype.cu_seqlens_q": "int32", "dtype.cu_seqlens_k": "int32", "dtype.mask": None,
}  # fmt: skip

#: Lengths are fixed when a call is planned, so a captured graph would keep those of its capture.
_SLAB: Mapping[str, Any] = {
    "attrs.single_page": True,
    "any_of": [{"mode.capture": None}, {"mode.capture": False}, {"attrs.fixed_lengths": True}],
}


def _tensors(names: tuple[str, ...], dtypes: tuple[str, ...]) -> dict[str, Any]:
    return {"any_of": [{f"dtype.{name}": dtype for name in names} for dtype in dtypes]}


def _where(*conditions: Mapping[str, Any]) -> dict[str, Any]:
    return {"all_of": list(conditions)}


def _flash_cpu(names: tuple[str, ...]) -> dict[str, Any]:
    return _where({"device.type": "cpu"}, _tensors(names, (*_HALF, "fp32", "fp64")))


def _flash_cuda(names: tuple[str, ...]) -> dict[str, Any]:
    return _where(
        {"device.type": "cuda", "device.vendor": "nvidia", "device.arch": ">=sm80"},
        {"shape.head_dim": "%8", "attrs.window": None},
        {"shape.head_dim": "<=256"},
        _tensors(names, _HALF),
    )


def _cudnn(names: tuple[str, ...]) -> dict[str, Any]:
    return _where(
        {"device.type": "cuda", "device.vendor": "nvidia", "device.arch": ">=sm80", "shape.head_dim": "%8"},
        {"any_of": [{"shape.head_dim": "<=128"}, {"shape.head_dim": "<=256", "device.arch": "sm90"}]},
        _tensors(names, _HALF),
    )


def _efficient(names: tuple[str, ...]) -> dict[str, Any]:
    half = {"shape.head_dim": "%8", "device.arch": ">=sm80", **_tensors(names, _HALF)}
    single = {"shape.head_dim": "%4", **_tensors(names, ("fp32",))}
    return _where({"device.type": "cuda", "device.vendor": "nvidia", "shape.group": 1}, {"any_of": [half, single]})


def _math(names: tuple[str, ...]) -> dict[str, Any]:
    return _where({"device.type": ["cpu", "cuda"]}, _tensors(names, (*_HALF, "fp32", "fp64")))


def _varlen(names: tuple[str, ...]) -> dict[str, Any]:
    return _where(
        {"device.type": "cuda", "device.vendor": "nvidia", "device.arch": ">=sm80", "lib.torch": ">=2.11"},
        {"shape.head_dim": "%8"},
        {"shape.head_dim": "<=256"},
        _tensors(names, _HALF),
    )


_QKV = ("q", "k", "v", "o")
_CACHE = ("q", "k_cache", "v_cache", "o")
_NO_CAP: Mapping[str, Any] = {"attrs.soft_cap": None}
#: torch aligns its causal mask to the first key: the same only where there are as many queries as keys.
_SQUARE: Mapping[str, Any] = {"any_of": [{"attrs.causal": False}, {"attrs.causal": True, "attrs.square": True}]}


#: The order measured on an H200 at π0.5's prefix and vision shapes, where no rule gives another.
_RANKS = {"cudnn": 4, "flash": 3, "varlen": 2, "efficient": 1, "math": 0}

#: cuDNN plans for the very lengths of a call. For a prefix of 968 on an H200 that is 29 us, 39 for FlashInfer's FA3
#: (benchmarks/results/pi05_3cameras_exact.json and pi05_3cameras_bucket.json).
_CUDNN, _PAGED_CUDNN = (
    {Band.SPECIALIZED: match({"device.arch": "sm90", "shape.head_dim": 256, dim: ">512"})}
    for dim in ("shape.Sq", "shape.T")
)


def _row(
    op: str, variant: str, when: Mapping[str, Any], doc: str, bands: Mapping[Band, Predicate] | None = None
) -> Kernel:
    return row(
        f"torch.{op}.{variant}", _where(when, _NO_CAP), f"{op}:prepare_{variant}",
        capture=Capture.AFTER_WARMUP, rank=_RANKS[variant.removeprefix("sdpa_")], bands=bands, doc=doc,
    )  # fmt: skip


_PAGE = "over every request's page"

KERNELS: tuple[Kernel, ...] = (
    _row(
        "attention",
        "flash",
        _where(_PADDED, {"any_of": [_flash_cpu(_QKV), _where(_flash_cuda(_QKV), {"dtype.mask": None}, _SQUARE)]}),
        "SDPA's flash attention (FlashAttention-2 on a GPU, torch's own on a CPU)",
    ),
    _row("attention", "cudnn", _where(_PADDED, _cudnn(_QKV)), "SDPA's cuDNN attention", _CUDNN),
    _row("attention", "efficient", _where(_PADDED, _efficient(_QKV)), "SDPA's memory-efficient attention (CUTLASS)"),
    _row("attention", "math", _where(_PADDED, _math(_QKV)), "SDPA's plain composition"),
    _row("attention", "varlen", _where(_RAGGED, _varlen(_QKV)), "torch's variable-length FlashAttention-2"),
    _row(
        "attention_paged",
        "sdpa_flash",
        _where(_SLAB, {"any_of": [_flash_cpu(_CACHE), _where(_flash_cuda(_CACHE), {"attrs.causal": False})]}),
        f"SDPA's flash attention {_PAGE}",
    ),
    _row(
        "attention_paged", "sdpa_cudnn", _where(_SLAB, _cudnn(_CACHE)), f"SDPA's cuDNN attention {_PAGE}", _PAGED_CUDNN
    ),
    _row(
        "attention_paged",
        "sdpa_efficient",
        _where(_SLAB, _efficient(_CACHE)),
        f"SDPA's memory-efficient attention {_PAGE}",
    ),
    _row("attention_paged", "sdpa_math", _where(_SLAB, _math(_CACHE)), f"SDPA's plain composition {_PAGE}"),
    _row(
        "attention_paged",
        "varlen",
        _where({"attrs.single_page": True}, _varlen(_CACHE)),
        "torch's variable-length FlashAttention-2 over the pages, lengths read on the device",
    ),
)
