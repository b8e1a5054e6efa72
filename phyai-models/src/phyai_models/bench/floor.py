"""What a π model must at least do: its operations and the bytes it must move, stage by stage.

Counted from the configuration, in one type: multiplications and additions of matrix products and attention (each counts
as one operation), every weight read once per pass, the keys and values that the expert reads, read once per step.
Activations, which fit into caches, count nothing. π0.5's modulations depend on the step alone, so they are not part
of an inference. What a quantized model does is counted from its calls (:mod:`phyai_models.bench.work`).

Source of the formulas: ``2 · M · N · K`` for a product, ``4 · queries · keys · heads · head_dim`` for attention.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from phyai_models.pi.config import GemmaConfig, PiConfig, SiglipConfig
from phyai_models.pi.precision import DTYPES


@attrs.frozen
class Work:
    """Operations by the type that they are computed in, and bytes read from memory.

    >>> both = Work({"bf16": 4e12}, 1e9) + Work({"bf16": 1e12, "fp8_e4m3": 2e12})
    >>> both.flops == {"bf16": 5e12, "fp8_e4m3": 2e12}, both.operations
    (True, 7000000000000.0)
    """

    flops: Mapping[str, float] = attrs.field(factory=dict)
    bytes: float = 0.0

    @property
    def operations(self) -> float:
        """Operations in all types together."""
        return sum(self.flops.values())

    def seconds(self, ceilings: Ceilings) -> float | None:
        """The shortest time in which a device with these ceilings can do it; None where a ceiling that it takes is not
        known."""
        products = self._products(ceilings)
        return None if products is None else max(products, self.bytes / ceilings.bandwidth)

    def limits(self, ceilings: Ceilings) -> tuple[str, ...]:
        """The ceilings that :meth:`seconds` stands under: the types of its products, or ``memory``."""
        products = self._products(ceilings)
        if products is None or products > self.bytes / ceilings.bandwidth:
            return tuple(sorted(self.flops, key=lambda dtype: -self.flops[dtype]))
        return ("memory",) if self.bytes else ()

    def _products(self, ceilings: Ceilings) -> float | None:
        rates = {dtype: ceilings.flops.get(dtype) for dtype in self.flops}
        each = [self.flops[dtype] / rate for dtype, rate in rates.items() if rate is not None]
        return sum(each) if len(each) == len(rates) else None

    def __add__(self, other: Work) -> Work:
        types = (*self.flops, *(dtype for dtype in other.flops if dtype not in self.flops))
        return Work({t: self.flops.get(t, 0) + other.flops.get(t, 0) for t in types}, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Work:
        return Work({dtype: count * times for dtype, count in self.flops.items()}, self.bytes * times)


@attrs.frozen
class Ceilings:
    """What a device does at best: operations per second in matrix products, by type, and bytes per second read from
    memory. ``unknown`` says of other types why nothing is known."""

    flops: Mapping[str, float]
    bandwidth: float
    unknown: Mapping[str, str] = attrs.field(factory=dict)


#: An H200's datasheet, dense.
H200_DATASHEET = Ceilings(flops={"bf16": 989e12, "fp8_e4m3": 1979e12, "int8": 1979e12}, bandwidth=4.8e12)


@attrs.frozen
class Case:
    """One inference: ``prompt`` valid tokens of each of ``batch`` requests, everything in ``dtype``."""

    config: PiConfig
    cameras: int
    prompt: int
    batch: int = 1
    steps: int = 10
    dtype: str = "bf16"

    @property
    def itemsize(self) -> int:
        """Bytes per number."""
        return DTYPES[self.dtype].itemsize

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


def floor_seconds(work: Mapping[str, Work], ceilings: Ceilings) -> dict[str, float | None]:
    """The floor of every stage, and their sum as ``total``: stages follow each other."""
    each = {name: part.seconds(ceilings) for name, part in work.items()}
    known = [seconds for seconds in each.values() if seconds is not None]
    return {**each, "total": sum(known) if len(known) == len(each) else None}


def vision(case: Case) -> Work:
    """All images through the vision tower, and their projection."""
    config = case.config.vision
    images, patches = case.batch * case.cameras, config.patches
    elements = siglip_parameters(config) + config.hidden_size * case.config.language_model.width
    attention = 4 * patches**2 * config.hidden_size * config.num_hidden_layers * images
    return Work({case.dtype: 2 * elements * images * patches + attention}, elements * case.itemsize)


def prefix(case: Case, *, skip_last_layer: bool = True) -> Work:
    """The language model over all prefix tokens; of its last layer keys and values alone, with ``skip_last_layer``."""
    config, tokens = case.config.language_model, case.prefix_tokens
    layer = layer_parameters(config)
    attention = 4 * tokens**2 * config.num_heads * config.head_dim
    full = Work({case.dtype: (2 * layer * tokens + attention) * case.batch}, layer * case.itemsize)
    keys = 2 * config.width * config.num_kv_heads * config.head_dim
    last = Work({case.dtype: 2 * keys * tokens * case.batch}, keys * case.itemsize) if skip_last_layer else full
    return full * (config.depth - 1) + last


def expert(case: Case) -> Work:
    """All steps of the expert."""
    config, tokens, keys = case.config.expert, case.suffix_tokens, case.prefix_tokens + case.suffix_tokens
    layer = layer_parameters(config)
    attention = 4 * tokens * keys * config.num_heads * config.head_dim
    cache = 2 * case.prefix_tokens * config.num_kv_heads * config.head_dim * case.itemsize
    one = Work(
        {case.dtype: (2 * layer * tokens + attention) * case.batch},
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
