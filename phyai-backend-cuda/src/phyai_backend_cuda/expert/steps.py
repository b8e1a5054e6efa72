"""``cuda.expert_steps.persistent``: :mod:`.launch` at a call site of ``expert_steps``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, number, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.expert.launch import Embedding, Expert
from phyai_backend_cuda.expert.weights import LayerWeights, modulation_tables, pack_layer, pack_out
from phyai_backend_cuda.runtime.memory import readable


def layers_of(weights: Mapping[str, Any]) -> list[LayerWeights]:
    """The weights of each layer."""
    return [
        LayerWeights(weights["qkv"][i], weights["o"][i], weights["gate_up"][i], weights["down"][i])
        for i in range(len(weights["qkv"]))
    ]


def tables_of(weights: Mapping[str, Any], layers: list[LayerWeights]) -> dict[str, torch.Tensor]:
    """The kernel's tables of all steps, from ``modulation [steps, 2 * layers + 1, 3 * width]``."""
    modulation = weights["modulation"]
    return modulation_tables(
        layers, modulation[:, 0:-1:2], modulation[:, 1:-1:2], modulation[:, -1], weights["out_weight"],
        weights["out_bias"],
    )  # fmt: skip


def embedding_of(weights: Mapping[str, Any]) -> Embedding | None:
    """What the actions pass in front of the first layer, where there is something."""
    if "embed_weight" not in weights:
        return None
    return Embedding(weights["time"], weights["embed_weight"], weights["embed_bias"])


def legible(*caches: torch.Tensor) -> list[torch.Tensor]:
    """The first pages ``[layers, keys, head_dim]`` of caches with one head, where the kernel can read them: with one
    row stride for all, as :func:`~phyai_backend_cuda.runtime.memory.readable` wants them; else copies."""
    pages = [cache[:, 0].flatten(2) for cache in caches]
    fit = len({page.stride(1) for page in pages}) == 1 and all(readable(page) is page for page in pages)
    return pages if fit else [page.clone(memory_format=torch.contiguous_format) for page in pages]


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    layers, steps, with_fixed = layers_of(weights), whole(facts, "shape.steps"), facts.get("dtype.fixed") is not None
    expert = Expert(
        layers, tables_of(weights, layers), in_weight=weights["in_weight"], in_bias=weights["in_bias"],
        out_weight=weights["out_weight"], dt=torch.full((steps,), -1.0 / steps, device=weights["in_weight"].device),
        cos_sin=weights["cos_sin"], queries=whole(facts, "shape.M"), capacity=whole(facts, "shape.page_size"),
        eps=number(facts, "attrs.eps", 1e-6), fixed=with_fixed, embedding=embedding_of(weights),
    )  # fmt: skip
    bound: tuple[object, ...] = ()
    copies: list[torch.Tensor] = []

    def run(
        x: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, lengths: torch.Tensor,
        fixed: torch.Tensor | None = None, out: torch.Tensor | None = None, state: object = None,
    ) -> torch.Tensor:  # fmt: skip
        nonlocal bound, copies
        caches = k_cache, v_cache
        where = (*(t.data_ptr() for t in caches), *(t.stride() for t in caches))
        if bound != where:  # the engine's cache stays where it is
            pages, bound = legible(*caches), where
            expert.bind_cache(*(page.unbind() for page in pages))
            copies = pages if pages[0].data_ptr() != k_cache.data_ptr() else []
        for copy, cache in zip(copies, caches, strict=False):
            copy.copy_(cache[:, 0].flatten(2))
        expert.tensors["lengths"].copy_(lengths.expand(2))  # the prefix's keys, and the position after them
        expert.tensors["actions"].copy_(x.reshape(expert.tensors["actions"].shape))
        if fixed is not None:
            expert.tensors["fixed"].copy_(fixed[0])
        expert.load_prefix()
        y = expert.run().view(x.shape)
        return y.clone() if out is None else out.copy_(y)

    def refresh(new: Mapping[str, Any]) -> None:
        renewed = layers_of(new)
        for i, layer in enumerate(renewed):
            for name, packed in zip(("wqkv", "wo", "wgu", "wd"), pack_layer(layer), strict=True):
                expert.tensors[name][i].copy_(packed)
        embedding = embedding_of(new)
        values = {
            **tables_of(new, renewed), "in_w": new["in_weight"], "in_b": new["in_bias"],
            "out_w": pack_out(new["out_weight"].bfloat16()), "cos_sin": new["cos_sin"],
            **({} if embedding is None else embedding.tensors()),
        }  # fmt: skip
        for name, value in values.items():
            expert.tensors[name].copy_(value)

    return Prepared(run, refresh=refresh)
