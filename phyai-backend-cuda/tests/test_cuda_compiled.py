"""The passes between products, compiled for Hopper (ptxas comes with Triton; no GPU is needed): what the compiler made
of them is what their speed rests on."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

# found, not imported: tests of other files have Triton interpret, which it decides when it is imported
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

#: Compiles kernels in a process of its own: in this one Triton may be interpreting.
COMPILE = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from phyai_backend_cuda.quantized.activated import _activate_quantize
from phyai_backend_cuda.quantized.int8 import _int8_product
from phyai_backend_cuda.quantized.kernels import _quantize
from phyai_backend_cuda.quantized.normed import _norm_quantize
from phyai_backend_cuda.triton_rows.norms import _layer_norm, _rms_norm
from phyai_backend_cuda.triton_rows.rope import _split_rope_write

BF16 = dict.fromkeys(("x", "residual", "weight", "bias", "y", "qkv", "q_out", "k_cache", "v_cache"), "*bf16")
TYPES = BF16 | dict.fromkeys(("x_step", "residual_step", "y_step", "page_size"), "i32") | {
    "eps": "fp32", "offset": "fp32", "codes": "*i16", "scales": "*fp32", "cos_sin": "*fp32", "positions": "*i64",
    "slots": "*i64", "row_scales": "*fp32", "row_scale": "*fp32", "column_scale": "*fp32", "M": "i32",
}
CACHE = (1024 * 256, 256, 256, 1)
CASES = {
    "activate_quantize": (_activate_quantize, {"x": "*i32"}, dict(
        given=None, width=8192, KIND="gelu_tanh", GATED=True, TOP=448.0, FROM="row", PER_ROW=True, BLOCK=8192,
        OVERLAP=True, COMPILED=True), 16),
    "norm_quantize": (_norm_quantize, dict.fromkeys(("x", "residual", "weight"), "*i32"), dict(
        given=None, width=1024, TOP=448.0, FROM="row", PER_ROW=True, BLOCK=1024, OVERLAP=True, COMPILED=True), 8),
    "norm_quantize_int8": (_norm_quantize, dict.fromkeys(("x", "residual", "weight"), "*i32"), dict(
        given=None, width=1024, TOP=127.0, FROM="row", PER_ROW=True, BLOCK=1024, OVERLAP=True, COMPILED=True), 8),
    "quantize": (_quantize, {"codes": "*fp8e4nv", "codes_step": "i32", "parts": "i32"}, dict(
        given=None, K=1152, TOP=448.0, LOW=-448.0, HIGH=448.0, FROM="row", PER_ROW=True, ROWS=1, BLOCK=2048, PARTS=1,
        OVERLAP=True), 8),
    "int8_product": (_int8_product, {"x": "tensordesc<i8[128, 128]>", "w": "tensordesc<i8[128, 128]>"}, dict(
        row_step=1, N=2048, K=2048, COLUMNS=1, bias=None, BIAS=False, BM=128, BN=128, BK=128, OVERLAP=True), 4),
    "split_rope_write": (_split_rope_write, {}, dict(
        heads=8, kv_heads=1, head_dim=256, rotary=256, NEOX=True, HALF=128, BLOCK=256, HEADS=8, KV_HEADS=1, PAGED=False,
        row_scales=None, scales=None, SCALED=False, OVERLAP=True, q_steps=(2048, 256, 1), k_cache_steps=CACHE,
        v_cache_steps=CACHE), 4),
    "split_rope_write_scaled": (_split_rope_write, {}, dict(
        heads=8, kv_heads=1, head_dim=256, rotary=256, NEOX=True, HALF=128, BLOCK=256, HEADS=8, KV_HEADS=1, PAGED=False,
        SCALED=True, OVERLAP=True, q_steps=(2048, 256, 1), k_cache_steps=CACHE, v_cache_steps=CACHE), 4),
    "rms_norm": (_rms_norm, {}, dict(D=2048, BLOCK=2048, ADD=True, W=True, OVERLAP=True), 8),
    "layer_norm": (_layer_norm, {}, dict(D=1152, BLOCK=2048, ADD=True, W=True, B=True, OVERLAP=True), 8),
}
made = {}
for name, (kernel, types, constants, warps) in CASES.items():
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else (TYPES | types)[n] for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n][0] in "*i"}
    source = ASTSource(kernel, signature, {(names.index(n),): value for n, value in constants.items()}, aligned)
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    made[name] = {"ptx": done.asm["ptx"], "shared": done.metadata.shared}
print(json.dumps(made))
"""


@functools.cache
def compiled() -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


OVERLAPPING = [
    "activate_quantize", "norm_quantize", "norm_quantize_int8", "quantize", "int8_product", "split_rope_write",
    "split_rope_write_scaled", "rms_norm", "layer_norm",
]  # fmt: skip


@pytest.mark.parametrize("name", OVERLAPPING)
def test_what_overlaps_waits_before_it_reads_or_writes(name: str) -> None:
    ptx = compiled()[name]["ptx"]
    wait = ptx.index("griddepcontrol.wait")
    accesses = [
        ptx.find(word) for word in ("ld.global", "st.global", "cp.async.bulk.tensor", "atom.", "red.") if word in ptx
    ]
    assert accesses
    assert all(wait < access for access in accesses)
    assert "griddepcontrol.launch_dependents" not in ptx


def test_the_activation_reads_and_writes_16_bytes_at_a_time_and_converts_pairs() -> None:
    ptx = compiled()["activate_quantize"]["ptx"]
    assert ptx.count("ld.global.v4.b32") == 8
    assert ptx.count("st.global.v4.b32") == 2
    assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") == 16
    assert "div.full" not in ptx


@pytest.mark.parametrize("name", ["norm_quantize", "norm_quantize_int8"])
def test_a_norm_reads_and_writes_what_a_thread_holds_at_once(name: str) -> None:
    ptx = compiled()[name]["ptx"]
    assert ptx.count("ld.global.v4.b32") == 3
    assert ptx.count("st.global.v4.b32") == 1
    assert ptx.count("st.global.v2.b32") == 1
    assert "local" not in ptx


def test_int8_products_are_of_the_tensor_cores_and_of_tensor_maps() -> None:
    ptx = compiled()["int8_product"]["ptx"]
    assert "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8" in ptx
    assert "cp.async.bulk.tensor" in ptx


def test_heads_of_q_are_rotated_where_they_were_read() -> None:
    made = compiled()["split_rope_write"]
    assert made["shared"] == 0
    assert made["ptx"].count("ld.global.v4.b32") == 6
    assert made["ptx"].count("st.global.v4.b32") == 2
