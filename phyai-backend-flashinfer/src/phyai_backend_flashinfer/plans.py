"""Plans of FlashInfer's batch prefill: what describes the scores, and wrappers that are planned again and again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from phyai.facts import Facts, number, whole

#: What FlashInfer asks for: split-KV partial results of a whole batch.
WORKSPACE = 128 << 20


def scores(facts: Facts) -> dict[str, Any]:
    """The keyword arguments of ``plan`` and of ``single_prefill_with_kv_cache`` that describe the scores."""
    soft_cap, scale = (
        number(facts, f"attrs.{name}") if f"attrs.{name}" in facts else None for name in ("soft_cap", "scale")
    )
    return {
        "causal": bool(facts.get("attrs.causal", False)),
        "window_left": whole(facts, "attrs.window", 0) - 1,  # ours counts the query's own key
        "logits_soft_cap": soft_cap,
        "sm_scale": scale,
    }


class Planner:
    """A wrapper, and when it may be planned again: FlashInfer copies a plan to the device from a buffer that is the
    wrapper's own, behind whatever is queued there, and the next plan would be written into that buffer meanwhile."""

    def __init__(self, wrapper: Any, device: torch.device) -> None:
        self.wrapper = wrapper
        self.planned: object = None  #: what for, where its owner plans only when that changes
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def plan(self, *args: Any, **named: Any) -> None:
        """The wrapper's ``plan``, once the copy of the last one is made."""
        if self._copied is not None:
            self._copied.synchronize()
        self.wrapper.plan(*args, **named)
        if self._copied is not None:
            self._copied.record()

    def run(self, *args: Any, **named: Any) -> Any:
        return self.wrapper.run(*args, **named)


class Wrappers:
    """Planners of one kind. Each belongs to one set of metadata tensors while those live: a captured graph holds the
    buffers of the wrapper that planned for it, so what else is planned meanwhile (a suffix beside its prefix, a graph
    of another size) must not write there, and what is planned for the same tensors again must."""

    def __init__(self, make: Callable[[], Planner]) -> None:
        self._make = make
        self._held: list[tuple[weakref.ref[torch.Tensor], Planner]] = []

    def of(self, owner: torch.Tensor) -> Planner:
        """The planner of ``owner``; a new owner takes one over whose own is gone, before another is made."""
        free = None
        for place, (held, planner) in enumerate(self._held):
            if held() is owner:
                return planner
            if held() is None:
                free = place
        if free is None:
            self._held.append((weakref.ref(owner), self._make()))
            return self._held[-1][1]
        self._held[free] = (weakref.ref(owner), self._held[free][1])
        return self._held[free][1]
