"""Kernel records: what a backend declares about one implementation of one op.

Declaring is cheap and imports nothing heavy: ``prepare`` is normally a ``"module:function"`` string
that is imported when the kernel is first prepared. Everything declared here gates a decision;
a field that no decision reads does not belong here.

>>> from phyai.predicates import match
>>> kernel = Kernel(
...     id="example.gemm.bf16", op="gemm", band=Band.OPTIMIZED,
...     when=match({"device.type": "cuda", "dtype.x": "bf16", "shape.K": "%8"}),
...     capture=Capture.SAFE, numerics=Numerics(reproducible=True),
...     prepare="example_backend.gemm:prepare")
>>> kernel.backend, kernel.variant
('example', 'bf16')
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from phyai.errors import DeclarationError
from phyai.facts import CORE_FACTS, FactKind, Facts, FactSpec, FactValue, Vocabulary
from phyai.predicates import TRUE, Predicate, PredicateError, intersect
from phyai.targets import load as load_target


class Band(enum.IntEnum):
    """Coarse order between kernels that nothing else orders; higher is preferred."""

    REFERENCE = 0  # plain and right
    GENERAL = 1  # a library's general call
    OPTIMIZED = 2  # tuned for the hardware
    SPECIALIZED = 3  # tuned for the shape


class Capture(enum.Enum):
    """Whether ``run`` may be recorded into a CUDA graph."""

    SAFE = "safe"
    AFTER_WARMUP = "after_warmup"  # one eager call first: it loads modules or allocates scratch
    NEVER = "never"


@attrs.frozen
class Numerics:
    """What a kernel promises about its numbers.

    ``reproducible``: the same call gives the same bits every time. ``batch_invariant``: a row's
    result does not depend on the other rows of the call. ``accumulation``: the accumulator's type;
    ``output`` where sums over parts of K are rounded to the output's type before they are added to each other.
    """

    reproducible: bool
    batch_invariant: bool = False
    accumulation: str = "fp32"


@attrs.frozen
class Prepared:
    """A kernel made ready for one call site.

    ``run(*tensors, out=None, state=None)`` takes the op's input tensors in signature order (None for
    an optional one that is absent) and returns its outputs (one tensor, or a tuple). ``out`` is a
    preallocated output (or tuple), of any strides with which its elements do not share memory; ``state`` what ``plan``
    returned. ``plan(metadata) -> state`` is called once per step and its state is shared by every site with the same
    ``plan_key``. ``refresh(weights)`` takes new weights of the same shapes in place, so that captured graphs stay
    valid. A field that is None means that the kernel does not offer it.
    """

    run: Callable[..., Any]
    plan: Callable[[Mapping[str, Any]], Any] | None = None
    refresh: Callable[[Mapping[str, Any]], None] | None = None
    plan_key: object = None


class Resources(Protocol):
    """What an engine lends to the kernels that it prepares. Owned by the engine, never global."""

    def workspace(self, key: str, nbytes: int) -> Any:
        """A uint8 tensor of at least ``nbytes`` on the site's device, shared by all who use ``key``."""

    def shared(self, key: object, make: Callable[[], Any]) -> Any:
        """The object made once per engine for ``key`` (a cuBLAS handle, a FlashInfer wrapper, …)."""

    def site(self, part: str, op: str, facts: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
        """A nested call site, for the decomposition of a composite op."""

    def chain(self) -> Callable[..., Any]:
        """The ``run`` of the chain that the caller bound, for the decomposition of a chained op."""

    @property
    def rows(self) -> tuple[int, int] | None:
        """The least and the greatest number of rows (M) of the site's calls, where who bound it said so."""


#: What facts may be as far as a kernel alone says: its op, which declares more, is not known to it.
_ANY_OP = Vocabulary(
    (
        *CORE_FACTS,
        FactSpec("shape.*", FactKind.NUMBER, ""),
        FactSpec("*", FactKind.NAME, "", minimum=-(10**9), integer=False),
    )
)

#: Bands, best first, each with the calls on which it holds.
Bands = tuple[tuple[Band, Predicate], ...]
PrepareFn = Callable[[Facts, Mapping[str, Any], Mapping[str, Any], Resources], Prepared]
#: Told how many of how many are done.
Progress = Callable[[int, int], None]


@attrs.frozen
class Param:
    """One parameter that a policy's ``params`` may give to a kernel."""

    name: str
    doc: str
    values: tuple[Any, ...] | None = None
    default: Any = None


def _check_id(_: Any, __: Any, value: str) -> None:
    parts = value.split(".")
    if len(parts) < 2 or not all(parts):
        raise DeclarationError(f"kernel id {value!r} must read <backend>.<op>[.<variant>]")


def _of(kind: type) -> Callable[[Kernel, attrs.Attribute[Any], Any], None]:
    def check(kernel: Kernel, field: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, kind):
            raise DeclarationError(
                f"kernel {kernel.id}: {field.name} is {value!r:.80}; it must be of type {kind.__name__}"
            )

    return check


def _best_first(bands: Mapping[Band, Predicate] | Iterable[tuple[Band, Predicate]]) -> Bands:
    pairs = tuple(bands.items() if isinstance(bands, Mapping) else bands)
    for band, where in pairs:
        if not (isinstance(band, Band) and isinstance(where, Predicate)):
            raise DeclarationError(f"bands gives {band!r} where {where!r:.80}; it maps each Band to a Predicate")
    if len(dict(pairs)) < len(pairs):
        raise DeclarationError("bands gives one band twice; use any_of")
    return tuple(sorted(pairs, key=lambda pair: -pair[0]))


def _inside(kernel: Kernel, _: Any, bands: Bands) -> None:
    """Refuse a band on calls that the kernel does not claim, as far as what is asked of single facts tells: nothing
    else would show the slip."""
    for band, where in bands:
        try:
            outside = _disjoint(kernel.when, where) and not _disjoint(kernel.when, TRUE)
        except PredicateError:
            continue  # too many alternatives to be sure
        if outside:
            raise DeclarationError(
                f"kernel {kernel.id}: bands gives {band.name} where {where!s:.300}, and no call that `when` "
                f"claims is one ({kernel.when!s:.300})"
            )


def _disjoint(p: Predicate, q: Predicate) -> bool:
    return intersect(p, q, vocabulary=_ANY_OP, implications=()) is None


def _backend(kernel: Kernel) -> str:
    return kernel.id.split(".", 1)[0]


@attrs.frozen(eq=False)
class Awaited:
    """A ``prepare`` to come: its kernel, and what it will be called with, as far as compiling depends on it."""

    kernel: Kernel
    facts: Facts
    weights: Mapping[str, Any]
    params: Mapping[str, Any]
    rows: tuple[int, int] | None = None


CompileFn = Callable[[Sequence[Awaited], Progress], None]


@attrs.frozen
class Kernel:
    """One implementation of one op, as a backend declares it.

    ``id`` is ``<backend>.<op>[.<variant>]``. ``when`` is exactly true: it holds for every call that the
    kernel computes correctly and for no other. ``band`` orders kernels, ``rank`` those of one backend inside a band
    (higher first). ``bands`` are the higher bands that measurements put it in on some calls that ``when`` claims: on
    each call the best one whose predicate holds counts. ``specializes_on`` lists the dynamic facts that ``prepare``
    may read; reading another raises. ``layouts`` are the weight layouts it reads; ``plain`` is the layout of ordinary
    tensors.

    ``compile`` is for kernels whose ``prepare`` compiles: once a model is loaded it is called with every ``prepare``
    that waits, those of all kernels that name the same function together, and compiles for them side by side. It
    changes nothing else, and what it leaves out ``prepare`` does.
    """

    id: str = attrs.field(validator=_check_id)
    op: str
    when: Predicate = attrs.field(validator=_of(Predicate))
    prepare: str | PrepareFn = attrs.field(repr=False)
    capture: Capture = attrs.field(validator=_of(Capture))
    numerics: Numerics = attrs.field(validator=_of(Numerics))
    band: Band = attrs.field(default=Band.GENERAL, validator=_of(Band))
    rank: int = attrs.field(default=0, validator=_of(int))
    bands: Bands = attrs.field(default=(), converter=_best_first, validator=_inside)
    specializes_on: tuple[str, ...] = attrs.field(default=(), validator=_of(tuple))
    layouts: tuple[str, ...] = attrs.field(default=("plain",), validator=_of(tuple))
    params: tuple[Param, ...] = attrs.field(default=(), validator=_of(tuple))
    compile: str | CompileFn | None = attrs.field(default=None, repr=False)
    doc: str = ""
    #: The first part of ``id``.
    backend: str = attrs.field(init=False, eq=False, repr=False, default=attrs.Factory(_backend, takes_self=True))

    @property
    def variant(self) -> str | None:
        head = f"{self.backend}.{self.op}."
        return self.id[len(head) :] if self.id.startswith(head) else None

    @property
    def conditions(self) -> tuple[Predicate, ...]:
        """Every predicate that it declares: what a decision about it depends on."""
        return (self.when, *(where for _, where in self.bands))

    def band_on(self, facts: Mapping[str, FactValue]) -> Band:
        """Its band for a call with these facts.

        >>> from phyai.predicates import match
        >>> kernel = Kernel(
        ...     id="example.gemm", op="gemm", when=match({}), prepare="example:prepare", capture=Capture.SAFE,
        ...     numerics=Numerics(reproducible=True), bands={Band.OPTIMIZED: match({"shape.M": "<=64"})})
        >>> kernel.band_on({"shape.M": 50}).name, kernel.band_on({"shape.M": 968}).name
        ('OPTIMIZED', 'GENERAL')
        """
        for band, where in self.bands:
            if where.holds(facts):
                return band
        return self.band

    def load(self) -> PrepareFn:
        """Import and return ``prepare``. The only place where a kernel's library is imported."""
        if not isinstance(self.prepare, str):
            return self.prepare
        prepare: PrepareFn = load_target(self.prepare)
        return prepare

    def load_compile(self) -> CompileFn | None:
        """Import and return ``compile``; None where the kernel has none."""
        if not isinstance(self.compile, str):
            return self.compile
        compile_: CompileFn = load_target(self.compile)
        return compile_
