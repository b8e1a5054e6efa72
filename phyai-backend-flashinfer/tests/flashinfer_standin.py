"""A stand-in for FlashInfer on a CPU: the calls that rows make, as torch computes them, strict where the library is.

Each refuses what the 0.7.4 sources named beside it refuse, so that a row which passes here gives the library arguments
that it takes. What it cannot show are the library's own numbers.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

HALF = (torch.bfloat16, torch.float16)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def aligned(*tensors: torch.Tensor) -> None:
    """16 bytes are read and written at a time."""
    for tensor in tensors:
        assert tensor.stride(-1) == 1 or tensor.shape[-1] == 1
        assert tensor.data_ptr() % 16 == 0


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None, *, causal: bool, window_left: int,
    logits_soft_cap: float | None, sm_scale: float | None,
) -> torch.Tensor:  # fmt: skip
    """``DefaultAttention`` of ``include/flashinfer/attention/variants.cuh``, in float64."""
    rows, keys, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    s = torch.einsum("qhd,khd->hqk", q.double(), k) * (sm_scale or q.shape[-1] ** -0.5)
    s = s if not logits_soft_cap else logits_soft_cap * torch.tanh(s / logits_soft_cap)
    i, j = torch.arange(rows)[:, None], torch.arange(keys)[None]
    seen = torch.ones(rows, keys, dtype=torch.bool) if keep is None else keep
    if causal:
        seen = seen & (j + rows <= keys + i)
    if window_left >= 0:
        seen = seen & (j + rows + window_left >= keys + i)
    p = torch.softmax(s.masked_fill(~seen, -torch.inf), -1).nan_to_num(0)
    return torch.einsum("hqk,khd->qhd", p, v).to(q.dtype)


def single_prefill_with_kv_cache(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, custom_mask: torch.Tensor | None = None, causal: bool,
    backend: str, **scores: Any,
) -> torch.Tensor:  # fmt: skip
    """prefill.py, csrc/single_prefill.cu"""
    aligned(q, k, v)
    assert q.dtype == k.dtype == v.dtype
    assert q.dtype in HALF
    if custom_mask is not None:
        assert backend == "fa2"
        assert custom_mask.dtype == torch.bool
        assert custom_mask.shape == (len(q), len(k))
        return attend(q, k, v, custom_mask, causal=False, **scores)  # causal is ignored beside a mask
    assert not causal or len(k) >= len(q)
    return attend(q, k, v, None, causal=causal, **scores)


class BatchPrefillWithRaggedKVCacheWrapper:
    """prefill.py, csrc/batch_prefill.cu, csrc/batch_prefill_sm90.cu"""

    plans = 0

    def __init__(self, workspace: torch.Tensor, kv_layout: str, *, backend: str) -> None:
        assert kv_layout == "NHD"
        assert backend in ("fa2", "fa3")

    def plan(
        self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, heads: int, kv_heads: int, head_dim: int, *,
        q_data_type: torch.dtype, kv_data_type: torch.dtype, **scores: Any,
    ) -> None:  # fmt: skip
        for indptr in (qo_indptr, kv_indptr):
            assert indptr.device.type == "cpu"  # a device tensor is waited for
            assert indptr.dtype == torch.int32
            assert indptr[0] == 0
            assert (indptr.diff() >= 0).all()
        assert len(qo_indptr) == len(kv_indptr)
        assert not scores["causal"] or (qo_indptr.diff() <= kv_indptr.diff()).logical_or(kv_indptr.diff() == 0).all()
        self._planned = (qo_indptr.clone(), kv_indptr.clone(), scores)
        self._shape, self._dtype = (heads, kv_heads, head_dim), (q_data_type, kv_data_type)
        type(self).plans += 1

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        aligned(q, k, v, out)
        starts_q, starts_k, scores = self._planned
        assert (q.shape[1], k.shape[1], q.shape[2]) == self._shape
        assert (q.dtype, k.dtype) == self._dtype
        assert len(q) == starts_q[-1]  # "q.shape[0] does not match qo_indptr[-1]"
        assert out.shape == q.shape
        for r in range(len(starts_q) - 1):
            mine, keys = slice(*starts_q[r : r + 2].tolist()), slice(*starts_k[r : r + 2].tolist())
            out[mine] = attend(q[mine], k[keys], v[keys], None, **scores)
        return out


def append_paged_kv_cache(
    append_key: torch.Tensor, append_value: torch.Tensor, batch_indices: torch.Tensor, positions: torch.Tensor,
    paged_kv_cache: tuple[torch.Tensor, torch.Tensor], kv_indices: torch.Tensor, kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> None:  # fmt: skip
    """page.py, csrc/page.cu"""
    k_cache, v_cache = paged_kv_cache
    aligned(append_key, append_value, k_cache, v_cache)
    assert k_cache.stride() == v_cache.stride()  # "k/v strides must be identical"
    assert len(kv_indptr) == len(kv_last_page_len) + 1
    for indices in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
        assert indices.is_contiguous()
    page_size = k_cache.shape[1]
    for i, (b, position) in enumerate(zip(batch_indices.tolist(), positions.tolist(), strict=True)):
        entry, offset = divmod(int(kv_indptr[b]) * page_size + position, page_size)
        k_cache[kv_indices[entry], offset] = append_key[i]
        v_cache[kv_indices[entry], offset] = append_value[i]


def layernorm(input: torch.Tensor, gemma: torch.Tensor, beta: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """norm/__init__.py, csrc/norm.cu"""
    assert input.dim() == 2
    assert input.stride(-1) == 1
    assert input.dtype == torch.bfloat16
    assert gemma.dtype == beta.dtype == torch.float32
    assert gemma.shape == beta.shape == input.shape[-1:]
    return F.layer_norm(input.double(), input.shape[-1:], gemma.double(), beta.double(), eps).to(input.dtype)


def mm_bf16(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor, out_dtype: torch.dtype,
    backend: str,
) -> torch.Tensor:  # fmt: skip
    """gemm/gemm_base.py: ``_check_mm_bf16_problem_size``, and ``_cublaslt_mm_bf16_requirement`` and its like"""
    assert a.dtype == b.dtype == torch.bfloat16
    assert a.is_contiguous()
    assert b.T.is_contiguous()
    assert out.dtype == out_dtype
    assert out.shape == (a.shape[0], b.shape[1])
    assert out.is_contiguous()
    assert bias is None or bias.shape == b.shape[1:]
    assert bias is None or bias.dtype == torch.bfloat16
    if backend == "tinygemm":
        assert out_dtype == torch.bfloat16
        assert b.shape[1] % 16 == 0
        assert b.shape[0] % 64 == 0
        aligned(a, b.T, out)
    elif backend == "cutlass":
        assert bias is None
        assert b.shape[0] % 8 == 0
        assert b.shape[1] % (16 // out_dtype.itemsize) == 0
        aligned(a, b.T, out)
    else:
        assert backend == "cublaslt"
        assert bias is None or out_dtype == torch.bfloat16
    y = a.double() @ b.double()
    return out.copy_(y if bias is None else y + bias.double())


def bmm_fp8(
    A: torch.Tensor, B: torch.Tensor, A_scale: torch.Tensor, B_scale: torch.Tensor, dtype: torch.dtype, *,
    out: torch.Tensor, backend: str,
) -> torch.Tensor:  # fmt: skip
    """gemm/gemm_base.py, csrc/bmm_fp8.cu, include/flashinfer/gemm/bmm_fp8.cuh"""
    assert backend in ("cublas", "cutlass")
    assert A.dtype in FP8
    assert B.dtype in FP8
    assert (A.dtype, B.dtype) != (torch.float8_e5m2, torch.float8_e5m2)
    assert dtype in HALF
    assert out.dtype == dtype
    assert A.is_contiguous()
    assert B.transpose(1, 2).is_contiguous()
    assert out.is_contiguous()
    aligned(A, B.transpose(1, 2), out)
    assert A.shape[2] % 16 == 0
    assert B.shape[2] % (16 if backend == "cublas" else 8) == 0
    assert backend == "cublas" or A.dtype == B.dtype == torch.float8_e4m3fn
    for scale in (A_scale, B_scale):
        assert scale.dtype == torch.float32
        assert scale.shape == (1,)
    return out.copy_(A.double() @ B.double() * A_scale * B_scale)


def fp8_blockscale_gemm_sm90(
    input: torch.Tensor, weight: torch.Tensor, *, weight_scale: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """gemm/gemm_base.py, csrc/fp8_blockscale_gemm_sm90_binding.cu, and ``scale_1x128_kernel`` of TensorRT-LLM"""
    (m, k), n = input.shape, len(weight)
    assert input.dtype == out.dtype == torch.bfloat16
    assert weight.dtype == torch.float8_e4m3fn
    assert k % 128 == 0 == n % 64
    assert weight.shape == (n, k)
    assert out.shape == (m, n)
    assert weight_scale.dtype == torch.float32
    assert weight_scale.shape == (-(-n // 128), k // 128)
    for tensor in (input, weight, weight_scale, out):
        assert tensor.is_contiguous()
    groups = input.float().view(m, -1, 128)
    amax = groups.abs().amax(-1, keepdim=True)
    factor = torch.where(amax == 0, 1, 448 / amax)
    a = ((groups * factor).to(torch.float8_e4m3fn).double() / factor).view(m, k)
    blocks = weight_scale.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)
    return out.copy_(a @ (weight.double() * blocks).T)


def gemm_fp8_nt_groupwise(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, scale_major_mode: str, *,
    out: torch.Tensor, backend: str,
) -> torch.Tensor:  # fmt: skip
    """gemm/gemm_base.py, include/flashinfer/gemm/gemm_groupwise_sm100.cuh, CUTLASS' ``Sm1xxBlockwiseScaleConfig``"""
    (m, k), n = a.shape, len(b)
    assert (scale_major_mode, backend) == ("K", "cutlass")
    assert m % 4 == 0  # "should be padded to a multiple of 4"
    assert a.dtype == b.dtype == torch.float8_e4m3fn
    assert out.dtype in HALF
    assert a_scale.dtype == b_scale.dtype == torch.float32
    assert a_scale.shape == (m, -(-k // 128))
    assert b_scale.shape == (-(-n // 128), -(-k // 128))
    for tensor in (a, b, a_scale, b_scale, out):
        assert tensor.is_contiguous()
    aligned(a, b, out)
    wide = [t.double().repeat_interleave(128, 1)[:, :k] for t in (a_scale, b_scale)]
    return out.copy_((a.double() * wide[0]) @ (b.double() * wide[1].repeat_interleave(128, 0)[:n]).T)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def scale_places(rows: int, groups: int) -> torch.Tensor:
    """``get_sf_out_offset_128x4`` of TensorRT-LLM's quantization_utils.cuh, for every scale."""
    m, g, tiles = torch.arange(rows)[:, None], torch.arange(groups)[None], -(-groups // 4)
    return (m // 128 * tiles + g // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + g % 4


def e2m1_values(packed: torch.Tensor) -> torch.Tensor:
    """Two values a byte, the first in its low half."""
    return E2M1[torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()]


def mm_fp4(
    a: torch.Tensor, b: torch.Tensor, a_descale: torch.Tensor, b_descale: torch.Tensor, alpha: torch.Tensor,
    *, out_dtype: torch.dtype, out: torch.Tensor, backend: str,
) -> torch.Tensor:  # fmt: skip
    """gemm/gemm_base.py, csrc/fp4_gemm_cutlass.cu"""
    b, b_descale = b.T, b_descale.T
    (m, n), k = (len(a), len(b)), a.shape[1] * 2
    assert backend == "cutlass"
    assert k % 32 == 0 == n % 32
    assert a.dtype == b.dtype == a_descale.dtype == b_descale.dtype == torch.uint8
    assert alpha.dtype == torch.float32
    assert alpha.numel() == 1
    assert out.dtype == out_dtype
    assert out.shape == (m, n)
    for tensor in (a, b, a_descale, b_descale, out):
        assert tensor.is_contiguous()
    aligned(a, b, out)
    wide = []
    for codes, scales in ((a, a_descale), (b, b_descale)):
        assert scales.numel() == -(-len(codes) // 128) * 128 * -(-k // 64) * 4
        linear = scales.flatten()[scale_places(len(codes), k // 16)].view(torch.float8_e4m3fn)
        wide.append(e2m1_values(codes) * linear.double().repeat_interleave(16, 1))
    return out.copy_(wide[0] @ wide[1].T * alpha)


def mm_bf16_fp4(
    a: torch.Tensor, b: torch.Tensor, b_descale: torch.Tensor, alpha: torch.Tensor, *, backend: str,
    out_dtype: torch.dtype, out: torch.Tensor, enable_pdl: bool,
) -> torch.Tensor:  # fmt: skip
    """gemm/gemm_bf16_fp4.py, ``_validate_blackwell_bf16_fp4`` of gemm/gemm_bf16_fp4_blackwell.py"""
    (m, k), n = a.shape, len(b)
    assert backend == "blackwell-native"
    assert a.dtype == torch.bfloat16
    assert k % 16 == 0
    assert b.dtype == torch.uint8
    assert b.shape == (n, k // 2)
    assert b_descale.dtype == torch.float8_e4m3fn
    assert b_descale.shape == (n, k // 16)
    assert out.dtype == out_dtype
    assert out_dtype in HALF
    assert out.shape == (m, n)
    assert alpha.dtype == torch.float32
    assert alpha.shape == (1,)
    for tensor in (a, b, b_descale, out, alpha):
        assert tensor.is_contiguous()
    weight = e2m1_values(b) * b_descale.double().repeat_interleave(16, 1)
    return out.copy_(a.double() @ weight.T * alpha)


def modules() -> dict[str, ModuleType]:
    """What is imported in the library's place."""
    flashinfer, norm, gemm = (ModuleType(f"flashinfer{name}") for name in ("", ".norm", ".gemm"))
    calls = {
        flashinfer: (single_prefill_with_kv_cache, BatchPrefillWithRaggedKVCacheWrapper, append_paged_kv_cache,
                     mm_bf16, bmm_fp8, mm_fp4),
        norm: (layernorm,),
        gemm: (fp8_blockscale_gemm_sm90, gemm_fp8_nt_groupwise, mm_bf16_fp4),
    }  # fmt: skip
    for module, theirs in calls.items():
        for call in theirs:
            setattr(module, call.__name__, call)
    return {module.__name__: module for module in calls}
