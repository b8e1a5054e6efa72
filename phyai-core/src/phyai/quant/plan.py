"""A quantization plan: which layer has which scheme. Ordered rules, the first that matches wins.

>>> w4 = QuantScheme(TensorQuant("int4", "group", group_size=128))
>>> head = QuantRule(((Matcher("name", "lm_head"),),), None)
>>> plan = QuantPlan((head, QuantRule(((Matcher("glob", "*_proj"),),), w4)))
>>> plan.scheme("lm_head") is None, plan.scheme("layers.0.q_proj").name
(True, 'w4a16_g128')
>>> [s.name for s in plan.shards("layers.0.qkv_proj").values()]
['w4a16_g128', 'w4a16_g128', 'w4a16_g128']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from phyai.quant.names import FUSED, Matcher, aliases_of, shards_of
from phyai.quant.scheme import QuantScheme, TensorQuant

__all__ = ["Matcher", "QuantPlan", "QuantRule", "QuantScheme", "TensorQuant"]


@attrs.frozen
class QuantRule:
    """``scheme`` (None: leave the layer as it is) for the layers that ``match`` describes.

    ``match`` is an any-of list of all-of lists. ``layout`` forces a memory layout. ``storage`` names the
    form in which a checkpoint stores such a layer. ``id`` is what reports call the rule.
    """

    match: tuple[tuple[Matcher, ...], ...]
    scheme: QuantScheme | None
    layout: str | None = None
    storage: str | None = None
    id: str = ""

    def matches(self, names: Sequence[str], module_cls: str | None = None) -> bool:
        return any(
            all(any(m.matches(name, module_cls) for name in names) for m in conditions) for conditions in self.match
        )


@attrs.frozen
class QuantPlan:
    """Ordered rules and a default.

    ``method`` is how a weight that is not yet quantized gets its codes: ``rtn``, ``rtn_mse``; None for a
    plan that was read from a checkpoint.
    """

    rules: tuple[QuantRule, ...] = ()
    default: QuantScheme | None = None
    method: str | None = None
    fused: Mapping[str, Sequence[str]] = FUSED

    def rule(self, name: str, module_cls: str | None = "Linear") -> QuantRule | None:
        """The first rule that reaches the layer ``name``, directly or through the fused layer it is part of."""
        names = aliases_of(name, self.fused)
        return next((rule for rule in self.rules if rule.matches(names, module_cls)), None)

    def scheme(self, name: str, module_cls: str | None = "Linear") -> QuantScheme | None:
        """The scheme of an unfused layer, or None when it keeps its precision."""
        rule = self.rule(name, module_cls)
        return self.default if rule is None else rule.scheme

    def shards(self, name: str, module_cls: str | None = "Linear") -> dict[str, QuantScheme | None]:
        """The scheme of every shard of a fused layer, by shard name; of the layer itself when it is not fused."""
        return {shard: self.scheme(shard, module_cls) for shard in shards_of(name, self.fused)}
