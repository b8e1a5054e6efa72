"""Which layers of a model bear quantization: measured, ranked, and turned into a mixed-precision policy.

Every group is quantized alone, then all together. The loss of a mixture is first estimated as the sum of its
groups' losses, scaled by what all together lose beside the sum of theirs; mixtures are then measured, led by that
estimate, until none of fewer bytes is left to try, or no tries are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.catalog import Catalog
from phyai.engine.plugin import Study, study_of
from phyai.errors import CheckpointError, InputError
from phyai.policy import Policy

from phyai_models.quantized.groups import Group, groups_of
from phyai_models.quantized.report import Answers, unquantized

#: Mixtures that are all estimated; of more groups only a chain, from the most bytes gained per loss on, is.
MAX_MIXTURES = 50_000
#: How much of the budget an estimate may take, from the first try on, while none has met it.
_SHARES = (1.5, 1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.0)

#: For every group the number of its option, or None where it keeps its precision.
Mixture = tuple[int | None, ...]


@attrs.frozen
class Measured:
    """One mixture, its bytes (of the groups' weights), and its answers against the original's."""

    mixture: Mixture
    nbytes: int
    answers: Answers

    @property
    def worst(self) -> float:
        return self.answers.cosine[self.answers.worst]

    @property
    def loss(self) -> float:
        return max(1.0 - self.worst, 0.0)


@attrs.frozen
class Sensitivity:
    """What was measured: ``alone`` by group and option, ``together`` with every group at its smallest, ``chosen`` the
    mixture that meets the budget, ``tried`` all mixtures measured on the way."""

    groups: tuple[Group, ...]
    method: str
    budget: float
    alone: Mapping[tuple[int, int], Measured]
    together: Measured
    chosen: Measured
    tried: tuple[Measured, ...]
    nbytes: int

    def ranking(self) -> list[tuple[int, int]]:
        """(group, option), the cheapest first: by loss for every byte gained."""
        return sorted(self.alone, key=lambda key: self._price(*key))

    def _price(self, group: int, option: int) -> tuple[float, int]:
        gained = self.groups[group].nbytes - self.groups[group].options[option].nbytes
        return (self.alone[group, option].loss / gained if gained > 0 else float("inf")), -gained

    def to_json(self) -> dict[str, Any]:
        def measured(found: Measured) -> dict[str, Any]:
            said = {k: v for k, v in found.answers.to_json().items() if k not in ("cosine", "error")}
            return {"bytes": found.nbytes, "mixture": self.named(found.mixture), **said}

        return {
            "budget": self.budget,
            "bytes_original": self.nbytes,
            "ranking": [
                {
                    "group": self.groups[g].name, "from": self.groups[g].options[o].source,
                    "scheme": self.groups[g].options[o].scheme.name, "layers": self.groups[g].layers,
                    "bytes_before": self.groups[g].nbytes, "bytes_after": self.groups[g].options[o].nbytes,
                    "worst_cosine": self.alone[g, o].worst,
                }
                for g, o in self.ranking()
            ],
            "together": measured(self.together),
            "chosen": measured(self.chosen),
            "tried": [measured(found) for found in self.tried],
        }  # fmt: skip

    def named(self, mixture: Mixture) -> dict[str, str | None]:
        """The scheme of every group in a mixture; None where it keeps its precision."""
        return {
            group.name: None if choice is None else group.options[choice].scheme.name
            for group, choice in zip(self.groups, mixture, strict=True)
        }


def measure_sensitivity(
    checkpoint_dir: str | Path,
    policies: Mapping[str, Policy],
    budget: float,
    *,
    catalog: Catalog,
    inputs: str | Path | None = None,
    samples: int = 8,
    by: str = "kind",
    tries: int = 16,
    progress: Callable[[float, float], None] = lambda _done, _total: None,
) -> Sensitivity:
    """Measure, rank, and find the mixture of the fewest bytes whose worst sample has at least cosine ``budget``.

    ``policies`` (by name) say what each layer may become; the first one's kernel rules are in force throughout.

    Raises:
        CheckpointError: no installed model claims the checkpoint, or no policy reaches a layer of it.
        InputError: a budget outside (0, 1], or observations that do not fit.
    """
    if not 0.0 < budget <= 1.0 or samples < 1:
        raise InputError(f"budget {budget} and samples {samples}: a cosine in (0, 1], and at least one sample")
    study = study_of(checkpoint_dir, catalog)
    if study is None:
        raise CheckpointError(
            f"{checkpoint_dir}: no installed model claims it, and only a model's answers can be compared"
        )
    groups = groups_of(checkpoint_dir, study, policies, by)
    job = _Job.of(study, groups, next(iter(policies.values())), inputs, samples)
    singles = [(g, o) for g, group in enumerate(groups) for o in range(len(group.options))]
    total = len(singles) + 1 + tries
    keep: Mixture = (None,) * len(groups)
    alone: dict[tuple[int, int], Measured] = {}
    for done, (g, o) in enumerate(singles):
        alone[g, o] = job.measure((*keep[:g], o, *keep[g + 1 :]))
        progress(done + 1, total)
    together = job.measure(tuple(_smallest(group) for group in groups))
    search = _Search(groups, {key: found.loss for key, found in alone.items()}, together, 1.0 - budget)
    tried: list[Measured] = []
    for _ in range(tries):
        mixture = search.next()
        if mixture is None:
            break
        tried.append(job.measure(mixture))
        search.take(tried[-1])
        progress(len(singles) + 1 + len(tried), total)
    chosen = search.best or job.measure(keep)
    nbytes = sum(group.nbytes for group in groups)
    return Sensitivity(groups, job.method, budget, alone, together, chosen, tuple(tried), nbytes)


def _smallest(group: Group) -> int:
    return min(range(len(group.options)), key=lambda o: group.options[o].nbytes)


def section_of(groups: Sequence[Group], mixture: Mixture, method: str) -> dict[str, Any]:
    """The ``quantization`` section of a policy in which the groups take these options."""
    rules = [
        {"id": group.name, "match": {"glob": list(group.paths)}, **group.options[choice].rule}
        for group, choice in zip(groups, mixture, strict=True)
        if choice is not None
    ]
    return {"method": method, "default": None, "rules": rules}


@attrs.frozen
class _Job:
    """Measures mixtures, each once."""

    study: Study
    groups: tuple[Group, ...]
    policy: Policy
    inputs: str | Path | None
    samples: int
    original: torch.Tensor
    _known: dict[Mixture, Measured] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls, study: Study, groups: tuple[Group, ...], policy: Policy, inputs: str | Path | None, samples: int
    ) -> _Job:
        original = study.answers(unquantized(policy), inputs=inputs, samples=samples)
        return cls(study, groups, policy, inputs, samples, original)

    @property
    def method(self) -> str:
        return str((self.policy.quantization or {}).get("method", "rtn"))

    def measure(self, mixture: Mixture) -> Measured:
        if mixture not in self._known:
            policy = attrs.evolve(self.policy, quantization=section_of(self.groups, mixture, self.method))
            answers = self.study.answers(policy, inputs=self.inputs, samples=self.samples)
            self._known[mixture] = Measured(
                mixture, bytes_of(self.groups, mixture), Answers.between(answers, self.original)
            )
        return self._known[mixture]


def bytes_of(groups: Sequence[Group], mixture: Mixture) -> int:
    """Bytes of the groups' weights in a mixture."""
    pairs = zip(groups, mixture, strict=True)
    return sum(group.nbytes if choice is None else group.options[choice].nbytes for group, choice in pairs)


class _Search:
    """Proposes mixtures: first the smallest whose estimate may meet the budget, more carefully after each that fails;
    then, of those smaller than the best that met it, the most promising."""

    def __init__(
        self, groups: tuple[Group, ...], alone: Mapping[tuple[int, int], float], together: Measured, allowed: float
    ) -> None:
        self.allowed = allowed
        self.best: Measured | None = None
        summed = sum(alone[g, o] for g, o in enumerate(together.mixture) if o is not None)
        self.factor = together.loss / summed if summed > 0 else 1.0
        self.estimates = {
            mixture: self.factor * sum(alone[g, o] for g, o in enumerate(mixture) if o is not None)
            for mixture in _mixtures(groups, alone)
        }
        self.bytes = {mixture: bytes_of(groups, mixture) for mixture in self.estimates}
        self._shares = iter(_SHARES)
        self._tried: set[Mixture] = set()

    def next(self) -> Mixture | None:
        if self.best is None:
            for share in self._shares:
                found = [m for m, e in self.estimates.items() if e <= share * self.allowed and m not in self._tried]
                if found:
                    return min(found, key=lambda m: (self.bytes[m], self.estimates[m]))
            return None
        smaller = [m for m, size in self.bytes.items() if size < self.best.nbytes and m not in self._tried]
        return min(smaller, key=lambda m: (self.estimates[m], self.bytes[m]), default=None)

    def take(self, measured: Measured) -> None:
        self._tried.add(measured.mixture)
        if measured.loss <= self.allowed and (self.best is None or measured.nbytes < self.best.nbytes):
            self.best = measured


def _mixtures(groups: tuple[Group, ...], alone: Mapping[tuple[int, int], float]) -> Iterator[Mixture]:
    """All mixtures, or the chain in which one more option is taken at each step, the cheapest first."""
    count = 1
    for group in groups:
        count *= len(group.options) + 1
    if count <= MAX_MIXTURES:
        yield from itertools.product(*((None, *range(len(group.options))) for group in groups))
        return

    def price(key: tuple[int, int]) -> float:
        gained = groups[key[0]].nbytes - groups[key[0]].options[key[1]].nbytes
        return alone[key] / gained if gained > 0 else float("inf")

    mixture: list[int | None] = [None] * len(groups)
    yield tuple(mixture)
    for g, o in sorted(alone, key=price):
        current = mixture[g]
        if current is None or groups[g].options[o].nbytes < groups[g].options[current].nbytes:
            mixture[g] = o
            yield tuple(mixture)
