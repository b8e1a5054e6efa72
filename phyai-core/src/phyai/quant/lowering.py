"""Lower: from what a weight means, and the device, to the memory layout it takes. The only stage that knows hardware.

The layouts that hold a scheme exactly are the plain one and every :class:`QuantFormat` of the catalog whose
predicate holds. Under each, the kernels are resolved over the rows that the site declares, by the same resolver
that will decide its calls. Taken is the layout under which every restriction holds for every number of rows; of
several, the one whose worst case the policy and the bands put first. ``layout:`` on a quantization rule
forces one. Exactly one packed copy of the weight exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from phyai.composite import is_decomposition, leaves, standing
from phyai.decision import Decision
from phyai.errors import NoKernelError
from phyai.facts import Facts, FactValue
from phyai.quant.formats import PLAIN, QuantFormat
from phyai.resolver import in_short, resolve

if TYPE_CHECKING:
    from phyai.catalog import Catalog
    from phyai.environment import Environment
    from phyai.policy import Policy
    from phyai.quant.weight import QuantizedWeight

#: Rows that are looked at when a site declares none.
ROWS: tuple[int, ...] = (1, 16, 64, 256, 1024)


@attrs.frozen
class Considered:
    """One layout: the kernel that each number of rows would get under it, or what stands in its way.

    ``objection`` is None for a layout under which every call has a kernel and every restriction holds.
    """

    layout: str
    kernels: Mapping[int, str]
    objection: str | None = None
    format: QuantFormat | None = attrs.field(default=None, repr=False)


@attrs.frozen
class LayoutChoice:
    """The layout of one weight, why, and every layout that was considered: those whose kernels come first, first."""

    layout: str
    format: QuantFormat | None
    why: str
    considered: tuple[Considered, ...]

    def pack(self, weight: QuantizedWeight) -> QuantizedWeight:
        """The plain weight in the chosen layout."""
        if self.format is None:
            return weight
        packed: QuantizedWeight = self.format.load_pack()(weight)
        return packed

    def others(self) -> tuple[LayoutChoice, ...]:
        """The choices that come after this one: the other layouts under which every restriction holds."""
        return tuple(
            attrs.evolve(self, layout=c.layout, format=c.format, why="a rule on the composite op holds under it only")
            for c in self.considered
            if c.layout != self.layout and c.objection is None
        )

    def to_text(self) -> str:
        """The choice, and what was found of every layout, one line each."""
        lines = [f"layout {self.layout}: {self.why}"]
        for c in self.considered:
            kernels = ", ".join(f"M={m} {kernel}" for m, kernel in _runs(c.kernels)) or "no kernel"
            lines.append(f"  {c.layout}: {kernels}" + (f"; {c.objection}" if c.objection else ""))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data, ready for ``json.dumps``."""
        considered = [
            {"layout": c.layout, "kernels": {str(m): k for m, k in c.kernels.items()}, "objection": c.objection}
            for c in self.considered
        ]
        return {"layout": self.layout, "why": self.why, "considered": considered}


def lower(
    facts: Mapping[str, FactValue],
    *,
    catalog: Catalog,
    policy: Policy,
    environment: Environment,
    rows: Iterable[int] = ROWS,
    forced: str | None = None,
) -> LayoutChoice:
    """Choose the layout of one weight.

    Args:
        facts: the site's static facts: ``op``, ``role``, ``layer``, ``dtype.*``, ``shape.N``, ``shape.K``, and the
            scheme's ``quant.*``.
        rows: the numbers of rows (M) that the site will see; one of each bucket is enough.
        forced: the layout that a quantization rule names.

    Raises:
        NoKernelError: no layout gives every call a kernel, or the forced one does not hold the scheme exactly; the
            message says what stands in the way of each.
    """
    known = Facts({**environment.facts(), **facts}).replace({"quant.layout": None})
    formats = [f for f in catalog.quant_formats if isinstance(f, QuantFormat)]
    exact: dict[str, QuantFormat | None] = {PLAIN: None, **{f.layout: f for f in formats if f.when.holds(known)}}
    if forced is not None and forced not in exact:
        raise NoKernelError(_not_exact(forced, formats, known))
    names = list(exact) if forced is None else [forced]
    trials = [_try(name, exact[name], known, tuple(rows), catalog, policy, environment) for name in names]
    usable = [t for t in trials if t.considered.objection is None] or [t for t in trials if t.worst is not None]
    if not usable:
        lines = [f"  {t.considered.layout}: {t.considered.objection}" for t in trials]
        where = facts.get("layer") or facts.get("op")
        raise NoKernelError(f"{where}: no layout of the weight gives every call a kernel\n" + "\n".join(lines))
    trials.sort(key=_Trial.place)
    best = next(t for t in trials if t in usable)
    layout = best.considered.layout
    return LayoutChoice(layout, exact[layout], _why(best, usable, forced), tuple(t.considered for t in trials))


@attrs.frozen
class _Trial:
    """A layout tried; ``worst`` sorts it by the case in which it does worst, None where a call has no kernel."""

    considered: Considered
    worst: tuple[Any, ...] | None

    def place(self) -> tuple[Any, ...]:
        """What trials are sorted by: the better first."""
        return self.worst is None, self.worst or (), self.considered.layout != PLAIN, self.considered.layout


def _try(
    layout: str,
    format: QuantFormat | None,
    known: Facts,
    rows: Sequence[int],
    catalog: Catalog,
    policy: Policy,
    environment: Environment,
) -> _Trial:
    kernels: dict[int, str] = {}
    keys: list[tuple[Any, ...]] = []
    objection = None
    for m in rows:
        call = known.replace({"quant.layout": layout, "shape.M": m})
        try:
            decision = resolve(call, catalog, policy, environment)
        except NoKernelError as error:
            return _Trial(Considered(layout, kernels, f"M={m}: {in_short(error, policy)}", format), None)
        assert decision.kernel is not None
        kernels[m] = decision.kernel.id
        objection = objection or _broken_restriction(decision, catalog, policy, m)
        keys.append(_key(decision, policy))
    return _Trial(Considered(layout, kernels, objection, format), max(keys))


def _broken_restriction(decision: Decision, catalog: Catalog, policy: Policy, m: int) -> str | None:
    """What a relaxed restriction says of a layout: it does not hold under it."""
    assert decision.kernel is not None
    if holds(decision, catalog, policy):
        return None
    rule = policy.aspects(decision.facts).restriction
    assert rule is not None
    return f"M={m}: rule {rule.ref} asks for {rule.restriction}, and {decision.kernel.id} is what is left"


def holds(decision: Decision, catalog: Catalog, policy: Policy) -> bool:
    """Whether the kernel that a call gets is one that its restriction allows: False where that was relaxed.

    A chain of a composite op's parts is allowed by the restriction when each of its kernels is, or where the part that
    stands for the whole is held to it.
    """
    if decision.kernel is None or not all(holds(part, catalog, policy) for part in decision.parts.values()):
        return False
    rule = policy.aspects(decision.facts).restriction
    if rule is None or rule.restriction is None or rule.restriction.allows(decision.kernel.id):
        return True
    if not is_decomposition(decision.kernel):
        return False
    if any(rule.ref in part.matched for part in standing(catalog.op(decision.op), decision.parts).values()):
        return True
    allows = rule.restriction.allows
    parts = leaves(decision.parts).values()
    return bool(parts) and all(allows(kernel.id) for kernel in parts)


def _runs(kernels: Mapping[int, str]) -> list[tuple[int, str]]:
    """The kernels with the rows from which on each is taken."""
    found: list[tuple[int, str]] = []
    for m, kernel in kernels.items():
        if not found or found[-1][1] != kernel:
            found.append((m, kernel))
    return found


def _key(decision: Decision, policy: Policy) -> tuple[Any, ...]:
    """Smaller is better: the policy's preferences, then the band, then the order of backends in ``defaults.ties``."""
    kernel = decision.kernel
    assert kernel is not None
    ties = policy.defaults.ties
    place = ties.index(kernel.backend) if kernel.backend in ties else len(ties)
    return policy.aspects(decision.facts).preference(kernel.id), -kernel.band_on(decision.facts), place


def _why(best: _Trial, usable: Sequence[_Trial], forced: str | None) -> str:
    if forced is not None:
        return f"layout {forced} is forced by its quantization rule"
    kernels = ", ".join(dict.fromkeys(best.considered.kernels.values()))
    if len(usable) == 1:
        return f"the only layout under which every call has a kernel ({kernels})"
    return f"its kernels ({kernels}) come first"


def _not_exact(forced: str, formats: Sequence[QuantFormat], known: Facts) -> str:
    found = next((f for f in formats if f.layout == forced), None)
    if found is None:
        layouts = ", ".join(sorted({PLAIN, *(f.layout for f in formats)}))
        return f"layout {forced!r} belongs to no backend that is installed; there are {layouts}"
    return f"layout {forced!r} does not hold {known.get('quant.scheme')} exactly: {found.when.why_not(known)}"
