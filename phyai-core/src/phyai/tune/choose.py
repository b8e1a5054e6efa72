"""From timings to a choice: pure, so that every process with the same timings and policy comes to the same one.

The *incumbent* is what the resolver chooses without tuning. A candidate takes its place only where it

- promises as much of its numbers (:class:`phyai.kernel.Numerics`), unless the policy asks for ``numerics: any``,
- was not disqualified (it crashed, hung, gave NaN, or other numbers than the incumbent), and
- is faster beyond the noise (:func:`phyai.tune.stats.beats`).

What is left is ranked the same way, the next in the untuned order being the incumbent of the next place, so that a
policy that forbids the winner still gets a measured second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import attrs

from phyai.catalog import Catalog
from phyai.composite import as_resolved, is_decomposition, leaves
from phyai.decision import Decision
from phyai.environment import Environment
from phyai.errors import AmbiguousKernelError, NoKernelError
from phyai.facts import Facts
from phyai.kernel import Kernel, Numerics
from phyai.policy import Policy
from phyai.resolver import resolve
from phyai.tune.record import Result, seconds
from phyai.tune.stats import MARGIN, beats

#: A step of the whole model differs little when one kernel changes; its noise is small too.
LIVE_MARGIN = 0.002


@attrs.frozen
class Untuned:
    """What the resolver makes of a call without tuning: the kernels that may run it, in order, and their numerics.

    ``any_numerics``: the policy asks for nothing, in so many words. ``tied``: nothing orders the first ones.
    """

    kernels: tuple[Kernel, ...]
    any_numerics: bool = False
    tied: bool = False
    #: The kernels that a composite op's parts resolve to, by part.
    parts: Mapping[str, str] = attrs.field(factory=dict)
    #: What the policy's rules give kernels as parameters, as text.
    params: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(kernel.id for kernel in self.kernels)


def untuned(facts: Facts, catalog: Catalog, policy: Policy, environment: Environment) -> Untuned:
    """The candidates of a call; none where no kernel may run it.

    ``policy`` may hold the tuning of the parts of a composite op, not of the op itself.
    """
    tied = False
    try:
        decision = resolve(facts, catalog, policy, environment)
    except AmbiguousKernelError as error:
        decision, tied = cast("Decision", error.decision), True
    except NoKernelError:
        return Untuned(())
    kernels = []
    for accepted in decision.accepted:
        kernel = catalog.kernel(accepted.kernel)
        kernels.append(as_resolved(kernel, decision.parts) if is_decomposition(kernel) else kernel)
    aspects = policy.aspects(decision.facts)
    given = {kernel.id: aspects.params(kernel.id) for kernel in kernels}
    params = {
        id: " ".join(f"{n}={v}" for n, (v, _) in sorted(values.items())) for id, values in given.items() if values
    }
    numerics = aspects.numerics
    asked = numerics.numerics if numerics is not None else policy.defaults.numerics
    any_numerics = asked is not None and str(asked) == "any"
    parts = {name: kernel.id for name, kernel in leaves(decision.parts).items()}
    return Untuned(tuple(kernels), any_numerics, tied, parts, params)


@attrs.frozen
class Choice:
    """Kernels in the order that timings give them, and the story of each."""

    ranking: tuple[str, ...]
    incumbent: str
    notes: Mapping[str, str] = attrs.field(factory=dict)
    gain: float = 1.0  #: the incumbent's time over the winner's

    @property
    def winner(self) -> str:
        return self.ranking[0]

    @property
    def changed(self) -> bool:
        return self.winner != self.incumbent


def choose(results: Mapping[str, Result], candidates: Untuned, *, margin: float = MARGIN) -> Choice | None:
    """Rank the candidates. None where none of them was timed."""
    timed = {id: r for id, r in results.items() if r.problem is None and r.samples}
    waiting = [kernel for kernel in candidates.kernels if kernel.id in timed]
    if not waiting:
        return None
    if candidates.tied:  # nobody is the incumbent
        waiting.sort(key=lambda kernel: timed[kernel.id].median)
    first = waiting[0].id
    ranking: list[str] = []
    while waiting:
        best = _best(waiting, timed, candidates.any_numerics, margin)
        waiting.remove(best)
        ranking.append(best.id)
    notes = _notes(ranking, first, timed, candidates)
    return Choice(tuple(ranking), first, notes, timed[first].median / timed[ranking[0]].median)


def _best(waiting: Sequence[Kernel], timed: Mapping[str, Result], any_numerics: bool, margin: float) -> Kernel:
    """The first of ``waiting``, or the fastest of those that beat it and may take its place."""
    incumbent = waiting[0]
    own = timed[incumbent.id].samples
    better = [
        kernel
        for kernel in waiting[1:]
        if (any_numerics or promises(kernel.numerics, incumbent.numerics))
        and beats(timed[kernel.id].samples, own, margin=margin)
    ]
    return min(better, key=lambda kernel: timed[kernel.id].median, default=incumbent)


def promises(candidate: Numerics, incumbent: Numerics) -> bool:
    """Whether a candidate's numerics are at least as good as the incumbent's, in the same accumulator.

    >>> promises(Numerics(reproducible=True), Numerics(reproducible=False))
    True
    >>> promises(Numerics(reproducible=False), Numerics(reproducible=True))
    False
    >>> promises(Numerics(reproducible=True, accumulation="fp16"), Numerics(reproducible=True))
    False
    """
    return (
        candidate.reproducible >= incumbent.reproducible
        and candidate.batch_invariant >= incumbent.batch_invariant
        and candidate.accumulation == incumbent.accumulation
    )


def _notes(ranking: Sequence[str], incumbent: str, timed: Mapping[str, Result], candidates: Untuned) -> dict[str, str]:
    numerics = {kernel.id: kernel.numerics for kernel in candidates.kernels}
    notes = {}
    for id in ranking:
        story = f"measured {timed[id].shown()}"
        if id == incumbent:
            story += ", in place without tuning"
        elif timed[id].median < timed[ranking[0]].median:
            crosses = not promises(numerics[id], numerics[ranking[0]])
            story += ", but of another class of numerics" if crosses else ", a win within the noise"
        if id == ranking[0] and len(ranking) > 1:
            other = incumbent if incumbent != id else ranking[1]
            story += f"; {other} {seconds(timed[other].median)}"
        notes[id] = story
    return notes
