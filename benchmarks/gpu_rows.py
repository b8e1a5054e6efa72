"""Rows of the CUDA, FlashInfer and torch backends at π0.5's shapes: µs in a CUDA graph, cold weights, beside the floor.

    python benchmarks/gpu_rows.py --out benchmarks/results/rows.json

``gpu_table.py`` says how they are timed, and what the floor is. Launches that overlap are timed each behind another of
its kind, which they overlap.
"""

# ruff: noqa: B023 - every closure is called before the loop goes on

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_few_rows import feed_forward, products
from gpu_table import Rows, bind, normal, prepared

F = torch.nn.functional


def gemms(table: Rows) -> None:
    for name, n, k in (("qkv", 2560, 1024), ("o", 1024, 2048), ("gate_up", 8192, 1024), ("down", 1024, 4096)):
        what, nbytes = f"expert {name} M=50 N={n} K={k}", 2 * (n * k + 50 * (n + k))
        table.plain(what, "torch.gemm (cuBLAS)", nbytes, lambda: mm(normal(50, k), normal(n, k)))
        for params in ({}, {"block_n": 16}, {"block_n": 64}, {"block_n": 64, "block_k": 64}, {"split": 1}):
            facts = {"shape.N": n, "shape.K": k, "device.sm_count": 132}
            table.row(
                what, "cuda.gemm.skinny", nbytes, facts, lambda: ({"weight": normal(n, k)}, (normal(50, k),)), params
            )


def library_gemms(table: Rows) -> None:
    """The libraries' products of 16-bit weights, at the expert's, the prefix's and the vision tower's sizes."""
    for m, n, k in (
        (50, 2560, 1024), (50, 1024, 2048), (50, 8192, 1024), (50, 1024, 4096), (50, 3072, 1024),
        (768, 3456, 1152), (768, 1152, 1152), (768, 2048, 1152),
        (968, 512, 2048), (968, 2048, 2048), (968, 32768, 2048), (968, 2048, 16384),
    ):  # fmt: skip
        what, nbytes, flops = f"gemm M={m} N={n} K={k}", 2 * (n * k + m * (n + k)), 2 * m * n * k
        table.plain(what, "torch.gemm.bf16", nbytes, lambda: mm(normal(m, k), normal(n, k)), flops)
        for id in ("flashinfer.gemm.bf16", "flashinfer.gemm.tiny_bf16"):
            facts = {"shape.N": n, "shape.K": k, "dtype.y": "bf16"}
            table.row(what, id, nbytes, facts, lambda: ({"weight": normal(n, k)}, (normal(m, k),)), flops=flops)


def mm(x: torch.Tensor, w: torch.Tensor) -> Callable[[], Any]:
    return lambda: F.linear(x, w)


def norms(table: Rows) -> None:
    for m, d in ((50, 1024), (968, 2048)):
        what, nbytes = f"rms_norm M={m} D={d}", 4 * m * d
        facts = {"dtype.x": "bf16", "shape.D": d, "attrs.eps": 1e-6, "attrs.offset": 0}
        table.plain(what, "torch.rms_norm", nbytes, lambda: bind(F.rms_norm, normal(m, d), (d,), normal(d)))
        for id in ("cuda.rms_norm", "cuda.rms_norm.overlap", "flashinfer.rms_norm"):
            table.row(what, id, nbytes, facts, lambda: ({"weight": normal(d)}, (normal(m, d),)))
        what, nbytes = f"rms_norm_add M={m} D={d}", 8 * m * d
        for id in ("cuda.rms_norm_add", "cuda.rms_norm_add.overlap", "flashinfer.rms_norm_add"):
            table.row(what, id, nbytes, facts, lambda: ({"weight": normal(d)}, (normal(m, d), normal(m, d))))
    for id in ("cuda.ada_rms_norm", "cuda.ada_rms_norm.overlap"):
        table.row("ada_rms_norm M=50 D=1024", id, 4 * 50 * 1024, {"dtype.x": "bf16", "shape.D": 1024},
                  lambda: ({}, (normal(50, 1024), normal(1, 3072))))  # fmt: skip
    table.plain("ada_rms_norm M=50 D=1024", "torch, eager", 4 * 50 * 1024, ada)
    table.row("gated_residual M=50 D=1024", "cuda.gated_residual", 6 * 50 * 1024, {"shape.D": 1024},
              lambda: ({}, (normal(50, 1024), normal(50, 1024), normal(1, 1024))))  # fmt: skip
    table.plain("gated_residual M=50 D=1024", "torch.addcmul", 6 * 50 * 1024,
                lambda: bind(torch.addcmul, normal(50, 1024), normal(50, 1024), normal(1, 1024)))  # fmt: skip
    what = "layer_norm M=768 D=1152"
    table.row(what, "cuda.layer_norm", 4 * 768 * 1152, {"shape.D": 1152},
              lambda: ({"weight": normal(1152), "bias": normal(1152)}, (normal(768, 1152),)))  # fmt: skip
    table.plain(what, "torch.layer_norm", 4 * 768 * 1152,
                lambda: bind(F.layer_norm, normal(768, 1152), (1152,), normal(1152), normal(1152)))  # fmt: skip

    what, nbytes = "layer_norm_add M=768 D=1152", 8 * 768 * 1152
    table.row(what, "cuda.layer_norm_add", nbytes, {"attrs.eps": 1e-6},
              lambda: ({"weight": normal(1152), "bias": normal(1152)},
                       (normal(768, 1152), normal(768, 1152))))  # fmt: skip
    table.plain(what, "torch: add_, layer_norm", nbytes, added_norm)


def added_norm() -> Callable[[], Any]:
    x, residual, weight, bias = normal(768, 1152), normal(768, 1152), normal(1152), normal(1152)
    return lambda: F.layer_norm(residual.add_(x), (1152,), weight, bias)


def vision(table: Rows) -> None:
    """SigLIP's feed-forward block."""
    m, k, i = 768, 1152, 4304
    what, nbytes, flops = f"mlp M={m} K=N={k} I={i}", 2 * (2 * k * i + 2 * m * k), 4 * m * k * i
    table.row(what, "torch.mlp.addmm_activation", nbytes, {},
              lambda: ({"fc1": normal(i, k), "fc1_bias": normal(i), "fc2": normal(k, i), "fc2_bias": normal(k)},
                       (normal(m, k) / 32,)), flops=flops)  # fmt: skip

    def chain() -> Callable[[], Any]:
        x, fc1, fc1_bias, fc2, fc2_bias = normal(m, k) / 32, normal(i, k), normal(i), normal(k, i), normal(k)
        return lambda: F.linear(F.gelu(F.linear(x, fc1, fc1_bias), approximate="tanh"), fc2, fc2_bias)

    table.plain(what, "torch: linear, gelu, linear", nbytes, chain, flops)


def patches(table: Rows) -> None:
    """SigLIP's embedding of one image to 24."""
    for images in (3, 1, 2, 24):
        embedded(table, images)


def embedded(table: Rows, images: int, size: int = 224, patch: int = 14, width: int = 1152) -> None:
    """Images in float32 to tokens, beside what torch's rows and the addition behind them take."""
    tokens, elements = (size // patch) ** 2, 3 * patch**2
    what = f"patch_embedding B={images} height={size} width={size} patches={tokens} O={width} patch={patch}"
    nbytes = 4 * images * 3 * size**2 + 2 * width * (elements + tokens + images * tokens)
    flops = 2 * images * tokens * width * elements

    def call() -> tuple[dict[str, Any], tuple]:
        weights = {"weight": normal(width, 3, patch, patch) / elements**0.5, "bias": normal(width)}
        return weights, (torch.randn(images, 3, size, size, device="cuda"), normal(tokens, width))

    table.row(what, "cuda.patch_embedding", nbytes, {}, call, flops=flops)

    def chain() -> Callable[[], Any]:
        weights, (x, position) = call()
        product = prepared("torch.conv2d.patches", {}, weights).run
        return lambda: (product(x.bfloat16()).flatten(2).transpose(1, 2) + position).contiguous()

    table.plain(what, "torch: cast, conv2d.patches, add", nbytes, chain, flops)


def embeddings(table: Rows) -> None:
    """The prompt's tokens, of a table of which every call reads other rows."""
    m, d = 200, 2048
    weight = normal(257152, d)
    what, nbytes, facts = f"embedding scaled M={m} D={d}", 4 * m * d, {"attrs.scale": 45.25}
    for id in ("cuda.embedding", "torch.embedding"):
        table.row(what, id, nbytes, facts,
                  lambda: ({"weight": weight}, (torch.randint(0, 257152, (m,), device="cuda"),)))  # fmt: skip


def ada() -> Callable[[], Any]:
    x, modulation = normal(50, 1024), normal(1, 3072)

    def call() -> torch.Tensor:
        scale, shift, _ = modulation.chunk(3, -1)
        return F.rms_norm(x, (1024,)) * (1 + scale) + shift

    return call


def activations(table: Rows) -> None:
    for m, width in ((50, 4096), (968, 16384)):
        what, nbytes = f"gated_activation gelu_tanh M={m} I={width}", 6 * m * width
        facts = {"shape.I": width, "attrs.activation": "gelu_tanh"}
        for id in ("cuda.gated_activation", "flashinfer.gated_activation"):
            table.row(what, id, nbytes, facts, lambda: ({}, (normal(m, 2 * width),)))


def rotary(table: Rows) -> None:
    cos_sin = torch.randn(2048, 256, device="cuda")
    for m, k in ((50, 1024), (968, 2048)):
        positions = torch.arange(m, device="cuda")
        facts = {"shape.heads": 8, "shape.kv_heads": 1, "shape.head_dim": 256, "shape.rotary_dim": 256}
        for id in ("cuda.rope", "flashinfer.rope"):
            table.row(f"rope M={m}", id, 4 * m * 9 * 256, facts,
                      lambda: ({"cos_sin": cos_sin}, (normal(m, 8, 256), normal(m, 1, 256), positions)))  # fmt: skip
        table.row(f"rope M={m}, part of a projection", "cuda.rope", 4 * m * 9 * 256, facts,
                  lambda: ({"cos_sin": cos_sin}, (*normal(m, 10, 256).split((8, 1, 1), 1)[:2], positions)))  # fmt: skip
        for id in ("cuda.kv_write", "torch.kv_write", "flashinfer.kv_write"):
            table.row(f"kv_write M={m}", id, 8 * m * 256, {**facts, "shape.pages": 1, "shape.page_size": 1024},
                      lambda: ({}, (normal(m, 1, 256), normal(m, 1, 256), normal(1, 1024, 1, 256),
                                    normal(1, 1024, 1, 256), positions)))  # fmt: skip
        what, nbytes, flops = f"qkv_rope_kv_write M={m} K={k}", 2 * (2560 * k + m * (k + 2560)), 2 * m * 2560 * k
        table.row(what, "cuda.qkv_rope_kv_write", nbytes, facts,
                  lambda: ({"weight": normal(2560, k), "cos_sin": cos_sin},
                           (normal(m, k), positions, normal(1, 1024, 1, 256), normal(1, 1024, 1, 256), positions)),
                  flops=flops)  # fmt: skip

        def chain() -> Callable[[], Any]:
            rope = prepared("cuda.rope", facts, {"cos_sin": cos_sin}).run
            kv_write = prepared("cuda.kv_write", facts, {}).run
            x, weight = normal(m, k), normal(2560, k)
            k_cache, v_cache = normal(1, 1024, 1, 256), normal(1, 1024, 1, 256)

            def call() -> torch.Tensor:
                q, key, value = F.linear(x, weight).unflatten(-1, (-1, 256)).split((8, 1, 1), -2)
                q, key = rope(q, key, positions)
                kv_write(key, value, k_cache, v_cache, positions)
                return q

            return call

        table.plain(what, "decomposed.qkv_rope_kv_write", nbytes, chain, flops)


def attention(table: Rows) -> None:
    """Every library's, of the expert (few queries, many keys), of prefixes, and of the vision tower's images."""
    for requests, queries, keys in (
        (1, 10, 600), (1, 50, 1018), (2, 50, 1018), (4, 50, 1018), (8, 50, 1018),
        (1, 128, 128), (1, 256, 256), (1, 456, 456), (1, 520, 520), (1, 712, 712), (1, 816, 816), (1, 968, 968),
    ):  # fmt: skip
        paged(table, requests, queries, keys)
    facts = {**HEADS, "shape.heads": 16, "shape.kv_heads": 16, "shape.head_dim": 72, "shape.group": 1}
    given(table, 3, 256, 256, facts, ("torch.attention.cudnn", "torch.attention.flash", "torch.attention.efficient"))
    for queries, keys in ((50, 1018), (968, 968)):
        ids = ("torch.attention.cudnn", "torch.attention.flash", "flashinfer.attention.fa2", "flashinfer.attention.fa3")
        given(table, 1, queries, keys, HEADS, ids)


HEADS: Mapping[str, Any] = {
    "shape.heads": 8, "shape.kv_heads": 1, "shape.head_dim": 256, "shape.group": 8, "attrs.causal": False,
    "dtype.q": "bf16", "device.sm_count": 132, "mode.capture": True,
}  # fmt: skip


def paged(table: Rows, requests: int, queries: int, keys: int) -> None:
    """Each request with a page of its own, at the front of the cache."""
    rows, size = requests * queries, 1024
    facts = {
        **HEADS, "shape.T": rows, "shape.pages": requests, "shape.page_size": size, "attrs.single_page": True,
        "attrs.fixed_lengths": True,
    }  # fmt: skip
    ends = torch.arange(requests + 1, dtype=torch.int32)
    metadata = {
        "cu_seqlens_q": ends * queries, "kv_indptr": ends, "kv_indices": ends[:-1].clone(),
        "last_page_len": torch.full((requests,), keys, dtype=torch.int32),
    }  # fmt: skip
    what = f"attention_paged T={rows} requests={requests} keys={keys}"
    nbytes, flops = 2 * 256 * (2 * requests * keys + 2 * 8 * rows), 4 * rows * keys * 8 * 256
    for id in (
        "cuda.attention_paged.split", "cuda.attention_paged.split_batch_invariant",
        "flashinfer.attention_paged.fa2", "flashinfer.attention_paged.fa3",
        "torch.attention_paged.sdpa_cudnn", "torch.attention_paged.sdpa_flash", "torch.attention_paged.varlen",
    ):  # fmt: skip
        if id.startswith("cuda.attention_paged.split") and rows > 512:
            continue
        on_host = id.startswith("flashinfer.")
        held = {name: tensor if on_host else tensor.cuda() for name, tensor in metadata.items()}

        def call() -> Callable[[], Any]:
            ready = prepared(id, facts, {})
            assert ready.plan is not None
            state = ready.plan(held)
            inputs = normal(rows, 8, 256), normal(requests, size, 1, 256), normal(requests, size, 1, 256)
            return lambda: ready.run(*inputs, state=state)

        table.plain(what, id, nbytes, call, flops)


def given(table: Rows, b: int, queries: int, keys: int, facts: Mapping[str, Any], ids: Sequence[str]) -> None:
    """Keys that come with the call."""
    heads, kv_heads, dim = (facts[f"shape.{name}"] for name in ("heads", "kv_heads", "head_dim"))
    what, nbytes = f"attention B={b} Sq={queries} Sk={keys}", 4 * b * dim * (heads * queries + kv_heads * keys)
    sizes, flops = {"shape.B": b, "shape.Sq": queries, "shape.Sk": keys}, 4 * b * queries * keys * heads * dim
    for id in ids:
        table.row(what, id, nbytes, {**facts, **sizes},
                  lambda: ({}, (normal(b, queries, heads, dim), normal(b, keys, kv_heads, dim),
                                normal(b, keys, kv_heads, dim))), flops=flops)  # fmt: skip


PARTS: Mapping[str, Callable[[Rows], None]] = {
    "gemms": gemms, "library_gemms": library_gemms, "norms": norms, "vision": vision, "embeddings": embeddings,
    "activations": activations, "rotary": rotary, "attention": attention, "products": products,
    "feed_forward": feed_forward, "patches": patches,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(PARTS))
    arguments = parser.parse_args()
    table = Rows(arguments.out)
    for name in arguments.only:
        PARTS[name](table)


if __name__ == "__main__":
    main()
