"""Decisions: what was chosen for one call, and for every other candidate the reason it lost.

A decision is data: it holds the facts it was made from, so it can be printed, written as JSON, compared
and made again. A reason is mandatory wherever a verdict is, and "unknown" is not one.

>>> Rejected("torch.gemm.fp8", Stage.CAPABILITY, "dtype.x=bf16 is not fp8_e4m3").reason
'dtype.x=bf16 is not fp8_e4m3'
>>> Rejected("torch.gemm.fp8", Stage.CAPABILITY, "unknown")
Traceback (most recent call last):
    ...
phyai.errors.DeclarationError: torch.gemm.fp8: a verdict needs a reason in words, got 'unknown'
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from phyai.errors import DeclarationError
from phyai.facts import Facts
from phyai.kernel import Kernel

if TYPE_CHECKING:
    from phyai.quant.lowering import LayoutChoice


#: How long a reason of several phrases may be where people read it, in characters.
_BRIEF = 120


class Stage(enum.Enum):
    """The step at which a candidate fell out, in the order in which the steps run."""

    CAPABILITY = "capability"  # the kernel's own predicate
    LAYOUT = "layout"  # it does not read the memory layout that the weight has
    CAPTURE = "capture"  # it cannot be recorded into a CUDA graph
    NUMERICS = "numerics"  # it does not promise what was asked for
    RESTRICTION = "restriction"  # a rule allows others only
    PARTS = "parts"  # composite: a rule on a part rules fusion out, or a part has no kernel
    PREPARE = "prepare"  # it failed on this machine: in ``prepare``, or planned, warmed up or captured afterwards


@attrs.frozen
class RuleRef:
    """Where a rule stands: enough to find it and to compare it. Printed as ``id (file:line)``."""

    id: str
    file: str | None = None
    line: int | None = None
    layer: str = "user"
    priority: int = 0

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{self.id} ({place})" if self.file else f"{self.id} ({self.layer})"


def _reason(verdict: Any, _: Any, value: str) -> None:
    if len(value) < 8 and value.strip().lower() in ("", "unknown", "none", "?"):
        raise DeclarationError(f"{verdict.kernel}: a verdict needs a reason in words, got {value!r}")


@attrs.frozen
class Accepted:
    """An eligible kernel. ``position`` 0 is the one that was chosen; ``why`` says what put it there."""

    kernel: str
    position: int
    why: str = attrs.field(validator=_reason)
    rule: RuleRef | None = None


@attrs.frozen
class Rejected:
    """A kernel that may not run the call, and why."""

    kernel: str
    stage: Stage
    reason: str = attrs.field(validator=_reason)
    rule: RuleRef | None = None

    @property
    def brief(self) -> str:
        """Of a capability's several reasons those that fit in two lines of a table; JSON and HTML have all."""
        if self.stage is not Stage.CAPABILITY:
            return self.reason  # it says what to do about it
        phrases = self.reason.split("; ")
        kept = 1
        while kept < len(phrases) and len("; ".join(phrases[: kept + 1])) <= _BRIEF:
            kept += 1
        more = len(phrases) - kept
        return "; ".join(phrases[:kept]) + (f"; and {more} more" if more else "")


Candidate: TypeAlias = "Accepted | Rejected"


@attrs.frozen(slots=False)
class Decision:
    """The outcome for one call.

    ``kernel`` is None only inside a :class:`phyai.errors.NoKernelError`, whose message is ``failure``.
    ``diagnosis`` puts into words what was found of every candidate, once somebody asks. ``matched`` are the rules
    that matched the call; ``decided_by`` is the layer whose say put the winner first. ``parts`` are the decisions
    of a composite op's parts. ``only_reference`` is the one of the ``warnings`` that says that only a reference kernel
    was left although a backend serves the device. ``layouts`` says, where that was part of the question, how quantized
    weights would lie and why, by weight.
    """

    op: str
    facts: Facts
    kernel: Kernel | None
    diagnosis: Callable[[], tuple[Candidate, ...]] = attrs.field(eq=False, repr=False)
    decided_by: str
    params: Mapping[str, Any] = attrs.field(factory=dict)
    matched: tuple[RuleRef, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    only_reference: str | None = None
    parts: Mapping[str, Decision] = attrs.field(factory=dict)
    failure: str | None = None
    layouts: Mapping[str, LayoutChoice] = attrs.field(factory=dict, eq=False)

    @functools.cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every kernel of the op: the accepted ones in order, then the rejected ones."""
        return self.diagnosis()

    @property
    def accepted(self) -> tuple[Accepted, ...]:
        return tuple(c for c in self.candidates if isinstance(c, Accepted))

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        return tuple(c for c in self.candidates if isinstance(c, Rejected))

    def why(self) -> str:
        """Why the chosen kernel was chosen, or why none was, in one sentence."""
        return self.accepted[0].why if self.kernel is not None else (self.failure or "no kernel of this op is eligible")

    def to_json(self) -> dict[str, Any]:
        """Plain data, ready for ``json.dumps``; facts that are sets become sorted lists."""
        return {
            "op": self.op,
            "chosen": self.kernel.id if self.kernel else None,
            "why": self.why(),
            "decided_by": self.decided_by,
            "params": dict(self.params),
            "facts": {k: sorted(v) if isinstance(v, frozenset) else v for k, v in sorted(self.facts.items())},
            "candidates": [_candidate_json(c) for c in self.candidates],
            "matched": [attrs.asdict(r) for r in self.matched],
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "parts": {name: part.to_json() for name, part in self.parts.items()},
            **({"layouts": {n: choice.to_json() for n, choice in self.layouts.items()}} if self.layouts else {}),
        }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    rule = attrs.asdict(candidate.rule) if candidate.rule else None
    if isinstance(candidate, Accepted):
        verdict = {"verdict": "accepted", "position": candidate.position, "reason": candidate.why}
    else:
        verdict = {"verdict": "rejected", "stage": candidate.stage.value, "reason": candidate.reason}
    return {"kernel": candidate.kernel, **verdict, "rule": rule}
