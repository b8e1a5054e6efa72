"""Say which kernel a call gets, on this machine or on one that is not here, and why every other candidate lost.

What is left out is filled in from the op's argument specs, and the answer says what was assumed.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyai.cli.command import Context, Exit
from phyai.errors import CallError
from phyai.facts import FactKind, FactSpec, Vocabulary, canonical_dtype
from phyai.op import Op
from phyai.policy import Layer
from phyai.predicates import FALSE
from phyai.spelling import did_you_mean

if TYPE_CHECKING:
    from phyai.decision import Decision
    from phyai.environment import Environment
    from phyai.policy import Policy

EXAMPLES = """
  phyai explain --op gemm
  phyai explain --device sm90 --op gemm -s M=50 -s N=4096 -s K=1024 --role expert
  phyai explain --device rtx4090 --op attention -d bf16 -a causal=true --policy policy.yaml
  phyai explain --op gemm -f quant.weight=int4 -f quant.group_size=128 --json
  phyai explain --op gated_mlp --device h200 --html decision.html
  phyai explain --op gated_mlp --device h200 -f quant.weight=fp8_e4m3 -f quant.activation=fp8_e4m3
  phyai explain --op gated_mlp --device h200 -f parts.down.quant.weight=int4
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", required=True, help="the op (or alias)")
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="auto (default), cpu, cuda:1, or a GPU by name (h200, sm90)"
    )
    pairs: Any = {"action": "append", "default": []}
    parser.add_argument("-s", "--shape", metavar="DIM=N", help="a dimension: -s M=50", **pairs)
    parser.add_argument("-d", "--dtype", metavar="[TENSOR=]DTYPE", help="a dtype: -d bf16, -d weight=int8", **pairs)
    parser.add_argument("-a", "--attr", metavar="NAME=VALUE", help="an attribute: -a causal=true", **pairs)
    parser.add_argument(
        "-f", "--fact", metavar="NAME=VALUE", help="any fact: -f model.family=pi05; null: absent", **pairs
    )
    parser.add_argument("--role", help="part of the model: vision, prefix, expert, …")
    parser.add_argument("--layer", help="module path of the layer")
    parser.add_argument("--capture", action="store_true", help="the call runs inside a CUDA graph")
    parser.add_argument("--policy", metavar="FILE", help="policy file; without one, PHYAI_KERNEL_CONFIG")
    parser.add_argument("--profile", help="static or autotune")
    parser.add_argument("--html", metavar="FILE", help="write the decision as a page too")


def main(args: argparse.Namespace, context: Context) -> int:
    from phyai.explain import explain_call, render, to_html

    op = context.catalog.op(args.op)
    given = _given(args, op, context.catalog.vocabulary_of(op.name))
    _check_role(given.get("role"), context)
    environment = context.environment(args.device)
    policy = context.policy(args.policy, args.profile)
    if policy.profile == "autotune":
        policy = _tuned(policy, environment, context)
    decision = explain_call(op.name, given, context.catalog, policy, environment)
    _note_rules_of_models(policy, decision, context)
    if args.html:
        Path(args.html).write_text(to_html(decision), encoding="utf-8")
    if context.json:
        context.emit(decision.to_json())
    else:
        context.show(render(decision))
    return Exit.OK if decision.kernel is not None else Exit.REFUSED


def _check_role(role: str | None, context: Context) -> None:
    """Note a role that no installed model has; where no model is installed, any role may be right."""
    known = sorted({role for model in context.catalog.models for role in getattr(model, "roles", ())})
    if role is not None and known and role not in known:
        hint = did_you_mean(role, known) or f"there are {', '.join(known)}"
        context.note(f"phyai: warning: no installed model has the role {role!r}; {hint}")


def _note_rules_of_models(policy: Policy, decision: Decision, context: Context) -> None:
    """Note the user's rules that ask which model calls, where the question does not say that and they could match."""
    name = "model.family"
    if name in decision.facts:
        return
    said = _AllBut(name)
    would = [
        rule.id
        for rule in policy.rules
        if rule.layer >= Layer.USER and name in rule.match.facts
        and rule.match.given(decision.facts, absent=said) != FALSE
    ]  # fmt: skip
    if would:
        context.note(f"phyai: the rules {', '.join(would)} ask for {name}, which the call does not say: -f {name}=…")


class _AllBut:
    """Every fact but one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __contains__(self, name: object) -> bool:
        return name != self._name


def _tuned(policy: Policy, environment: Environment, context: Context) -> Policy:
    """The policy with what was measured on the device; what is wrong with the store is noted."""
    from phyai.tune import with_tuning

    tuned = with_tuning(policy, context.catalog, environment, context.env)
    if tuned.problem:
        context.note(f"phyai: warning: {tuned.problem}")
    return tuned.policy


def _given(args: argparse.Namespace, op: Op, vocabulary: Vocabulary) -> dict[str, Any]:
    """What the options say, as facts."""
    first = op.inputs[0].name
    pairs = [
        *((f"shape.{name}", value) for name, value in _split("--shape", args.shape)),
        *((f"dtype.{name}", value) for name, value in _split("--dtype", args.dtype, alone=first)),
        *((f"attrs.{name}", value) for name, value in _split("--attr", args.attr)),
        *_split("--fact", args.fact),
        *((name, getattr(args, name)) for name in ("role", "layer") if getattr(args, name) is not None),
        *([("mode.capture", "true")] if args.capture else []),
    ]
    given: dict[str, Any] = {}
    for name, text in pairs:
        if name == "op" or name.startswith("device."):
            raise CallError(f"{name}={text!r} is not said as a fact; use --{name.partition('.')[0]}")
        if name in given:
            raise CallError(f"{name} is given twice")
        given[name] = read_value(name, text, vocabulary.find(name))
    return given


def _split(option: str, given: Iterable[str], *, alone: str | None = None) -> list[tuple[str, str]]:
    pairs = []
    for item in given:
        name, equals, value = item.partition("=")
        if not equals and alone is not None:
            name, value = alone, item
        elif not equals or not name:
            raise CallError(f"{option} {item!r} must read name=value")
        pairs.append((name, value))
    return pairs


def read_value(name: str, text: str, spec: FactSpec | None) -> Any:
    """A fact's value as people type it, by the fact's kind.

    >>> read_value("shape.M", "50", FactSpec("shape.M", FactKind.NUMBER, "")), read_value("role", "null", None)
    (50, None)

    Raises:
        CallError: the text is no value of that kind.
    """
    if text in ("null", "none", "None"):
        return None
    kind = spec.kind if spec is not None else FactKind.NAME
    if kind is FactKind.NUMBER:
        whole = spec is not None and spec.integer
        for read in (int,) if whole else (int, float):
            with contextlib.suppress(ValueError):
                return read(text)
        raise CallError(f"{name}={text!r} is no {'whole ' if whole else ''}number")
    if kind is FactKind.FLAG:
        if text.lower() not in ("true", "false"):
            raise CallError(f"{name}={text!r} is neither true nor false")
        return text.lower() == "true"
    if kind is FactKind.SET:
        return frozenset(filter(None, text.split(",")))
    values = spec.values if spec is not None and not name.startswith(("dtype.", "attrs.")) else None
    if values is not None and canonical_dtype(text) not in values:
        raise CallError(f"{name} has no value {text!r}; {did_you_mean(text, values) or 'one of ' + ', '.join(values)}")
    return text
