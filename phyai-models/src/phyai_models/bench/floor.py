"""What a π model must at least do: its operations and the bytes it must move, stage by stage.

Counted from the configuration: multiplications and additions of matrix products and attention (each counts as one
operation), every weight read once per pass, the keys and values that the expert reads, read once per step.
Activations, which fit into caches, count nothing. π0.5's modulations depend on the step alone, so they are not part
of an inference.

Source of the formulas: ``2 · M · N · K`` for a product, ``4 · queries · keys · heads · head_dim`` for attention.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from phyai_models.pi.config import GemmaConfig, PiConfig, SiglipConfig


@attrs.frozen
class Work:
    """Operations, and bytes read from memory."""

    flops: float
    bytes: float

    def seconds(self, ceilings: Ceilings) -> float:
        """The shortest time in which a device with these ceilings can do it."""
        return max(self.flops / ceilings.flops, self.bytes / ceilings.bandwidth)

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Work:
        return Work(self.flops * times, self.bytes * times)


@attrs.frozen
class Ceilings:
    """What a device does at best: operations per second in matrix products, bytes per second read from memory."""

    flops: float
    bandwidth: float


#: An H200's datasheet, dense bf16.
H200_DATASHEET = Ceilings(flops=989e12, bandwidth=4.8e12)


@attrs.frozen
class Case:
    """One inference: ``prompt`` valid tokens of each of ``batch`` requests, ``itemsize`` bytes per number."""

    config: PiConfig
    cameras: int
    prompt: int
    batch: int = 1
    steps: int = 10
    itemsize: int = 2

    @property
    def prefix_tokens(self) -> int:
        """Prefix tokens of a request."""
        return self.cameras * self.config.vision.patches + self.prompt

    @property
    def suffix_tokens(self) -> int:
        """Tokens of a request that the expert computes: the chunk, and π0's state."""
        return self.config.chunk_size + (self.config.family == "pi0")


def stages(case: Case, *, skip_last_layer: bool = True) -> dict[str, Work]:
    """The work of ``vision``, ``prefix`` and ``expert``."""
    return {"vision": vision(case), "prefix": prefix(case, skip_last_layer=skip_last_layer), "expert": expert(case)}


def floor_seconds(work: Mapping[str, Work], ceilings: Ceilings) -> dict[str, float]:
    """The floor of every stage, and their sum as ``total``: stages follow each other."""
    each = {name: part.seconds(ceilings) for name, part in work.items()}
    return {**each, "total": sum(each.values())}


def vision(case: Case) -> Work:
    """All images through the vision tower, and their projection."""
    config = case.config.vision
    images, patches = case.batch * case.cameras, config.patches
    elements = siglip_parameters(config) + config.hidden_size * case.config.language_model.width
    attention = 4 * patches**2 * config.hidden_size * config.num_hidden_layers * images
    return Work(2 * elements * images * patches + attention, elements * case.itemsize)


def prefix(case: Case, *, skip_last_layer: bool = True) -> Work:
    """The language model over all prefix tokens; of its last layer keys and values alone, with ``skip_last_layer``."""
    config, tokens = case.config.language_model, case.prefix_tokens
    layer = layer_parameters(config)
    attention = 4 * tokens**2 * config.num_heads * config.head_dim
    full = Work(2 * layer * tokens * case.batch + attention * case.batch, layer * case.itemsize)
    keys = 2 * config.width * config.num_kv_heads * config.head_dim
    last = Work(2 * keys * tokens * case.batch, keys * case.itemsize) if skip_last_layer else full
    return full * (config.depth - 1) + last


def expert(case: Case) -> Work:
    """All steps of the expert."""
    config, tokens, keys = case.config.expert, case.suffix_tokens, case.prefix_tokens + case.suffix_tokens
    layer = layer_parameters(config)
    attention = 4 * tokens * keys * config.num_heads * config.head_dim
    cache = 2 * case.prefix_tokens * config.num_kv_heads * config.head_dim * case.itemsize
    one = Work(
        (2 * layer * tokens + attention) * case.batch,
        layer * case.itemsize + cache * case.batch,
    )
    return one * (config.depth * case.steps)


def layer_parameters(config: GemmaConfig) -> int:
    """Elements of the matrices of a Gemma layer."""
    heads = config.num_heads * config.head_dim
    qkv = config.width * (heads + 2 * config.num_kv_heads * config.head_dim)
    return qkv + heads * config.width + 3 * config.width * config.mlp_dim


def modulation_parameters(config: GemmaConfig) -> int:
    """Elements of π0.5's projections from time to modulations: two in every layer, and a last one."""
    return (2 * config.depth + 1) * config.width * 3 * config.width


def siglip_parameters(config: SiglipConfig) -> int:
    """Elements of the matrices of the vision tower, patch embedding included."""
    layer = 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
    return layer * config.num_hidden_layers + 3 * config.patch_size**2 * config.hidden_size
