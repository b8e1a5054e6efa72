"""Facts: what is known about one call, as a flat mapping from dotted names to plain values.

A fact has a *kind*, which fixes what a predicate may ask of it, and is *static* (known when a call
site is bound) or *dynamic* (M, sequence lengths: known per call). A fact that is not known is simply
absent from the mapping; comparing with an absent fact is false, and so is the negation.

Values are plain Python data, so that a decision for a GPU that is not there needs neither torch
nor a driver: numbers are ``int`` or ``float``, names and architectures are ``str``, versions are
:class:`packaging.version.Version`-comparable strings, sets are ``frozenset`` of ``str``.

>>> facts = Facts({"op": "gemm", "shape.K": 1024, "device.arch": "sm90"})
>>> facts["shape.K"], "shape.M" in facts
(1024, False)
>>> facts.replace({"shape.M": 50})["shape.M"]
50
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar, overload

import attrs

from phyai.spelling import nearest

FactValue: TypeAlias = "bool | int | float | str | frozenset[str]"
T = TypeVar("T")


class FactKind(enum.Enum):
    """What a fact's values are, and so which comparisons make sense."""

    NUMBER = "number"  # equality, ranges, multiples
    NAME = "name"  # equality, membership, globs
    FLAG = "flag"  # true / false
    SET = "set"  # a set of names; a comparison asks for membership in it
    VERSION = "version"  # PEP 440, ordered
    ARCH = "arch"  # sm75 < sm80 < … within one vendor; never comparable across vendors


@attrs.frozen
class FactSpec:
    """The declaration of one fact.

    ``name`` may be a glob (``lib.*``), which declares a family. ``values``, when given, is the closed
    set of names that the fact can take. ``minimum`` is the smallest number it can take; only whole
    numbers when ``integer``.
    ``dynamic`` facts are known per call, all others when the call site is bound.
    """

    name: str
    kind: FactKind
    doc: str
    dynamic: bool = False
    values: tuple[str, ...] | None = None
    minimum: int = 0
    integer: bool = True


#: Canonical dtype names; :func:`canonical_dtype` accepts the spellings that people write.
DTYPES: tuple[str, ...] = (
    "fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip

#: What codes of a quantized tensor can stand for.
ELEMENT_TYPES: tuple[str, ...] = (
    *(f"int{bits}" for bits in range(2, 9)), *(f"uint{bits}" for bits in range(2, 9)),
    "fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1",
)  # fmt: skip

_DTYPE_ALIASES: dict[str, str] = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "tf32": "fp32",
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3", "float8_e4m3": "fp8_e4m3", "fp8": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2", "long": "int64", "int": "int32",
}  # fmt: skip


def canonical_dtype(name: str) -> str:
    """The canonical name of a dtype; unknown names come back unchanged.

    >>> canonical_dtype("bfloat16"), canonical_dtype("torch.float16"), canonical_dtype("int8")
    ('bf16', 'fp16', 'int8')
    """
    name = name.removeprefix("torch.")
    return _DTYPE_ALIASES.get(name, name)


#: Facts that any op's calls can carry. Ops add their own ``shape.*``, ``dtype.*``, ``attrs.*``.
CORE_FACTS: tuple[FactSpec, ...] = (
    FactSpec("op", FactKind.NAME, "name of the op"),
    FactSpec("role", FactKind.NAME, "part of the model: vision, prefix, expert, head, …"),
    FactSpec("layer", FactKind.NAME, "full module path of the layer that calls"),
    FactSpec("phase", FactKind.NAME, "stage of the inference, as the model names it"),
    FactSpec("model.family", FactKind.NAME, "pi05, pi0, cosmos3, …"),
    FactSpec("model.tags", FactKind.SET, "free tags given by the engine's configuration"),
    FactSpec("device.type", FactKind.NAME, "cpu or cuda", values=("cpu", "cuda", "xpu", "mps")),
    FactSpec("device.vendor", FactKind.NAME, "nvidia, amd, …", values=("nvidia", "amd", "intel", "apple")),
    FactSpec("device.arch", FactKind.ARCH, "sm75 … sm121"),
    FactSpec("device.name", FactKind.NAME, "as the driver names it"),
    FactSpec("device.sm_count", FactKind.NUMBER, "streaming multiprocessors"),
    FactSpec("device.memory_gb", FactKind.NUMBER, "memory in GB (10^9 bytes)", integer=False),
    FactSpec("quant.scheme", FactKind.NAME, "short name of the weight-and-input scheme (w4a16_g128)"),
    FactSpec("quant.format", FactKind.NAME, "element format of the weight (int4, nvfp4, fp8_e4m3)"),
    FactSpec("quant.layout", FactKind.NAME, "how the weight lies in memory (plain, humming, 128x4)"),
    FactSpec("quant.weight", FactKind.NAME, "element type of the weight", values=ELEMENT_TYPES),
    FactSpec("quant.activation", FactKind.NAME, "element type the input is quantized to; absent for A16",
             values=ELEMENT_TYPES),
    FactSpec("quant.granularity", FactKind.NAME, "tensor, channel, group, block",
             values=("tensor", "channel", "group", "block", "token")),
    FactSpec("quant.activation_granularity", FactKind.NAME, "tensor, token, group",
             values=("tensor", "channel", "token", "group", "block")),
    FactSpec("quant.activation_dynamic", FactKind.FLAG, "input scale computed per call"),
    FactSpec("quant.group_size", FactKind.NUMBER, "inputs per scale", minimum=1),
    FactSpec("quant.block_n", FactKind.NUMBER, "outputs per block scale", minimum=1),
    FactSpec("quant.block_k", FactKind.NUMBER, "inputs per block scale", minimum=1),
    FactSpec("quant.symmetric", FactKind.FLAG, "no zero point"),
    FactSpec("quant.zero_point", FactKind.NAME, "absent, int or float", values=("int", "float")),
    FactSpec("quant.scale_dtype", FactKind.NAME, "fp32, bf16, fp16, e8m0, fp8_e4m3"),
    FactSpec("quant.second_scale", FactKind.FLAG, "a second-level scale exists"),
    FactSpec("quant.g_idx", FactKind.FLAG, "inputs are assigned to groups by an index"),
    FactSpec("quant.pre_scale", FactKind.FLAG, "the input is multiplied by pre_quant_scale first"),
    FactSpec("quant.fields.*", FactKind.NAME, "further fields, as policy files of the earlier system name them"),
    FactSpec("lib.*", FactKind.VERSION, "version of an installed library; absent when it is not installed"),
    FactSpec("mode.capture", FactKind.FLAG, "the site will run inside a captured CUDA graph"),
)  # fmt: skip


class Facts(Mapping[str, FactValue]):
    """An immutable, hashable mapping of dotted fact names to values."""

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, FactValue] | Iterable[tuple[str, FactValue]] = ()) -> None:
        self._values: dict[str, FactValue] = dict(values)
        self._hash: int | None = None

    def __getitem__(self, name: str) -> FactValue:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def get(self, name: str, /) -> FactValue | None: ...
    @overload
    def get(self, name: str, /, default: FactValue) -> FactValue: ...
    @overload
    def get(self, name: str, /, default: T) -> FactValue | T: ...
    def get(self, name: str, /, default: object = None) -> object:
        return self._values.get(name, default)  # Mapping's own raises and catches for every absent fact

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._values.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and self._values == other._values

    def __repr__(self) -> str:
        return f"Facts({self._values!r})"

    def replace(self, changes: Mapping[str, FactValue | None]) -> Facts:
        """A copy with ``changes`` applied; ``None`` removes a fact."""
        merged = {**self._values, **{k: v for k, v in changes.items() if v is not None}}
        for name, value in changes.items():
            if value is None:
                merged.pop(name, None)
        return Facts(merged)

    def under(self, prefix: str) -> dict[str, FactValue]:
        """The facts below ``prefix``, without it: ``facts.under("attrs")["eps"]``."""
        head = prefix + "."
        return {k[len(head) :]: v for k, v in self._values.items() if k.startswith(head)}


def number(facts: Mapping[str, FactValue], name: str, default: float | None = None) -> float:
    """The number that the fact ``name`` has, as a float; ``default`` where it is absent.

    Raises:
        TypeError: it is no number, or absent without a default.

    >>> number({"attrs.eps": 1e-6}, "attrs.eps"), number({}, "attrs.offset", 0)
    (1e-06, 0.0)
    """
    value = facts.get(name, default)
    if not isinstance(value, int | float):
        raise TypeError(f"the fact {name} is {'absent' if value is None else repr(value)}; a number is needed")
    return float(value)


def whole(facts: Mapping[str, FactValue], name: str, default: int | None = None) -> int:
    """The same of a fact that counts something: ``whole(facts, "shape.K")``."""
    return int(number(facts, name, default))


@attrs.frozen
class Vocabulary:
    """All facts that are declared: the core's and those of the ops in a catalog.

    >>> vocabulary = Vocabulary(CORE_FACTS)
    >>> vocabulary.find("lib.flashinfer").kind
    <FactKind.VERSION: 'version'>
    >>> vocabulary.find("devic.arch") is None, vocabulary.suggest("devic.arch")
    (True, 'device.arch')
    """

    specs: tuple[FactSpec, ...]
    _exact: dict[str, FactSpec] = attrs.field(init=False, repr=False, eq=False)
    _families: tuple[FactSpec, ...] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        exact = {s.name: s for s in self.specs if "*" not in s.name}
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_families", tuple(s for s in self.specs if "*" in s.name))

    def find(self, name: str) -> FactSpec | None:
        """The declaration of ``name``, or None when nothing declares it."""
        spec = self._exact.get(name)
        if spec is not None:
            return spec
        return next((s for s in self._families if fnmatch.fnmatchcase(name, s.name)), None)

    def suggest(self, name: str) -> str | None:
        """The declared name nearest to ``name``, or None when none is near."""
        return nearest(name, self._exact)

    def names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.specs)
