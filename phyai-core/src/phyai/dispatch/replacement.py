"""Replacing the policy of a dispatcher while its sites are in use.

Everything that was decided is decided again under the new policy before anything changes. A prepared kernel that
the new policy chooses again stays as it is, so graphs that captured it stay valid. A site is thawed when one of
its decisions differs, or when the new policy can tell apart calls that the old one could not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from phyai.decision import Decision, Stage
from phyai.dispatch.layouts import Layouts
from phyai.dispatch.memo import Cells, Entry, Memo, node_of
from phyai.errors import NeedsReload, NoKernelError
from phyai.policy import Policy
from phyai.resolver import resolve

if TYPE_CHECKING:
    from phyai.dispatch.dispatcher import Dispatcher
    from phyai.dispatch.site import Site


@attrs.frozen
class PolicyChange:
    """What replacing the policy did. ``thawed`` sites decide new calls again: run them, then freeze. Graphs that
    contain a site in ``recapture`` (the thawed ones that were bound for capture) must be captured anew."""

    thawed: tuple[str, ...] = ()
    recapture: tuple[str, ...] = ()


@attrs.define
class _Change:
    """What the new policy makes of one site. ``again`` holds decisions that need a kernel prepared."""

    site: Site
    memo: Memo
    again: list[Decision] = attrs.field(factory=list)
    incomplete: bool = False  # it reads facts that were not known when the site decided

    @property
    def thaws(self) -> bool:
        return bool(self.again) or self.incomplete or not self.memo.cells.coarser_than(self.site.memo.cells)


def replace(dispatcher: Dispatcher, policy: Policy) -> PolicyChange:
    """Put ``policy`` in force; see :meth:`Dispatcher.replace_policy`, which holds the lock."""
    _refuse_requantizing(dispatcher, policy)
    changes: list[_Change] = []
    reload = _lying_otherwise(dispatcher, policy)
    gone: set[Site] = set()
    for site in dispatcher.sites:  # composites come before the sites of their parts
        if site in gone:
            continue
        change = _Change(site, Memo(Cells(site.op, site.static, dispatcher.catalog, policy)))
        for entry in site.memo.entries():
            if not _redecide(dispatcher, change, entry, policy, reload):
                gone.update(inner for part in entry.sites for inner in part.walk())
        changes.append(change)
    if reload:
        why = f"the new policy needs weights in another layout at {', '.join(reload)}; the old one stays in force"
        raise NeedsReload(why, tuple(reload))
    for change in changes:
        for decision in change.again:
            dispatcher.decide_in(change.site, change.memo, decision.facts, policy)
    thawed = [change.site for change in changes if change.thaws]
    for change in changes:
        change.site.memo = change.memo
    for site in thawed:
        site.thaw()
    return PolicyChange(
        thawed=tuple(site.name for site in thawed),
        recapture=tuple(site.name for site in thawed if site.static.get("mode.capture") is True),
    )


def _redecide(dispatcher: Dispatcher, change: _Change, entry: Entry, policy: Policy, reload: list[str]) -> bool:
    """Decide one entry's call again; whether its prepared kernel stays."""
    facts = entry.decision.facts
    site, cells = change.site, change.memo.cells
    if any(name not in facts for name in site.open_dims & cells.reads(site.open)):
        change.incomplete = True
        return False
    try:
        parts = site.chained(policy)
        decision = resolve(facts, dispatcher.catalog, policy, dispatcher.environment, failed=entry.failed, parts=parts)
    except NoKernelError as error:
        if isinstance(error.decision, Decision) and _only_layout(error.decision, policy):
            reload.append(site.name)
            return True
        raise
    node = node_of(site, decision, entry.failed)
    if (node.kernel.id, dict(decision.params)) != (entry.kernel.id, dict(entry.decision.params)):
        change.again.append(decision)
        return False
    node = change.memo.nodes.setdefault(cells(facts), node)
    node.children[node.values(facts)] = attrs.evolve(entry, decision=decision)
    return True


def _lying_otherwise(dispatcher: Dispatcher, policy: Policy) -> list[str]:
    """The sites whose weights would have been packed into other layouts under the new policy."""
    layouts = Layouts(dispatcher.catalog, policy, dispatcher.environment)
    found = []
    for site in dispatcher.sites:
        was = site.lowering
        try:
            new = layouts.choose(site.op, was.static, tuple(was.choices), rows=was.rows, forced=was.forced)
        except NoKernelError:
            continue  # calls that were decided say so below, with the whole diagnosis
        if any(new[name].layout != choice.layout for name, choice in was.choices.items()):
            found.append(site.name)
    return found


def _only_layout(decision: Decision, policy: Policy) -> bool:
    """Whether a call without a kernel would have one if its weight lay in another layout."""
    rule = policy.aspects(decision.facts).restriction
    allowed = rule.restriction if rule is not None else None
    for candidate in decision.rejected:
        if candidate.stage is Stage.LAYOUT and (allowed is None or allowed.allows(candidate.kernel)):
            return True
    return any(part.kernel is None and _only_layout(part, policy) for part in decision.parts.values())


def _refuse_requantizing(dispatcher: Dispatcher, policy: Policy) -> None:
    """Weights are quantized when they are loaded: another quantization section cannot take effect now."""
    if policy.quantization == dispatcher.policy.quantization:
        return
    concerned = tuple(site.name for site in dispatcher.sites if any("int8" in t.dtypes for t in site.op.weights))
    if concerned:
        raise NeedsReload(
            f"the new policy has another quantization section, which is applied when weights are loaded "
            f"({len(concerned)} sites); load the model again under it. The old policy stays in force",
            concerned,
        )
