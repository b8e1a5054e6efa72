"""Check a policy file, or show the policy that is in force."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from phyai.cli.command import Context, Exit
from phyai.cli.parsing import add_action
from phyai.errors import PolicyError

if TYPE_CHECKING:
    from phyai.policy import Problem, Rule

_CHECK_EXAMPLES = """
  phyai policy check policy.yaml
  phyai policy check policies/*.yaml --strict --json
"""
_SHOW_EXAMPLES = """
  phyai policy show                       # the shipped default, or what PHYAI_KERNEL_CONFIG names
  phyai policy show policy.yaml --profile autotune
"""
EXAMPLES = _CHECK_EXAMPLES + _SHOW_EXAMPLES.lstrip("\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = add_action(actions, "check", "find every problem of policy files", _check.__doc__, _CHECK_EXAMPLES)
    check.add_argument("files", nargs="+", metavar="FILE", help="policy files")
    check.add_argument("--strict", action="store_true", help="warnings fail the check too")
    show = add_action(actions, "show", "show the rules in force, layer by layer", _show.__doc__, _SHOW_EXAMPLES)
    show.add_argument("file", nargs="?", metavar="FILE", help="policy file; without one, PHYAI_KERNEL_CONFIG")
    show.add_argument("--profile", help="static or autotune; without one, PHYAI_KERNEL_PROFILE, then the file")


def main(args: argparse.Namespace, context: Context) -> int:
    return _check(args, context) if args.action == "check" else _show(args, context)


def _check(args: argparse.Namespace, context: Context) -> int:
    """Read policy files and report every problem with file, line and column. Status 1 when there is one."""
    from phyai.policy import load_policy

    results = []
    for file in args.files:
        errors: tuple[Any, ...] = ()
        warnings: tuple[Any, ...] = ()
        try:
            warnings = load_policy(file, catalog=context.catalog).warnings
        except PolicyError as error:
            errors, warnings = error.problems, error.warnings
        failed = bool(errors) or (args.strict and bool(warnings))
        results.append(
            {
                "file": file,
                "ok": not failed,
                "errors": [_problem(problem) for problem in errors],
                "warnings": [_problem(problem) for problem in warnings],
            }
        )
        if not context.json:
            for problem in errors:
                context.say(f"{problem}")
            for problem in warnings:
                context.say(f"{problem} [warning]")
            verdict = "refused" if errors else "warnings, and --strict is given" if failed else "ok"
            context.say(f"{file}: {verdict}")
    if context.json:
        context.emit(results)
    return Exit.OK if all(result["ok"] for result in results) else Exit.REFUSED


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.location.file,
        "line": problem.location.line,
        "column": problem.location.column,
        "message": problem.message,
        "got": problem.got,
        "suggestion": problem.suggestion,
        "witness": plain(problem.witness) if problem.witness is not None else None,
    }


def plain(facts: Any) -> dict[str, Any]:
    """Facts as plain data, ready for JSON."""
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in sorted(facts.items())}


def _show(args: argparse.Namespace, context: Context) -> int:
    """Show the policy in force: a file over the shipped default policy, strongest rules first."""
    policy = context.policy(args.file, args.profile)
    rules = sorted(policy.rules, key=lambda rule: rule.strength, reverse=True)
    if context.json:
        context.emit(
            {
                "source": policy.source,
                "profile": policy.profile or "static",
                "fallback": policy.fallback,
                "ties": list(policy.defaults.ties),
                "quantization": policy.quantization,
                "rules": [_rule(rule) for rule in rules],
            }
        )
        return Exit.OK
    context.say(f"policy: {policy.source or 'the shipped default'}")
    context.say(f"profile: {policy.profile or 'static'}; fallback: {policy.fallback}")
    if policy.defaults.ties:
        context.say(f"ties between backends: {' before '.join(policy.defaults.ties)}")
    if policy.quantization is not None:
        context.say(f"quantization: {json.dumps(policy.quantization, ensure_ascii=False, default=str)}")
    if rules:
        context.table(
            ("rule", "layer", "priority", "match", "says", "where"),
            [
                (
                    rule.id,
                    str(rule.layer),
                    str(rule.priority),
                    _flow(rule.match.to_yaml()),
                    "; ".join(_says(rule)),
                    f"{rule.ref.file}:{rule.ref.line}" if rule.ref.file else "",
                )
                for rule in rules
            ],
        )
    return Exit.OK


def _says(rule: Rule) -> list[str]:
    says = [str(rule.restriction)] if rule.restriction else []
    if rule.prefer:
        says.append(f"prefer: {', '.join(rule.prefer)}")
    if rule.params:
        says.append(f"params: {_flow(dict(rule.params))}")
    if rule.numerics is not None:
        says.append(f"numerics: {', '.join(_numerics(rule)) or 'any'}")
    if rule.fallback:
        says.append(f"fallback: {', '.join(rule.fallback)}")
    return says


def _numerics(rule: Rule) -> list[str]:
    demand = rule.numerics
    if demand is None:
        return []
    asked = [name for name in ("reproducible", "batch_invariant") if getattr(demand, name)]
    return [*asked, *(f"accumulation {kind}" for kind in demand.accumulation)]


def _rule(rule: Rule) -> dict[str, Any]:
    kernels = list(rule.restriction.kernels) if rule.restriction else None
    pinned = rule.restriction is not None and rule.restriction.pin
    return {
        "id": rule.id,
        "layer": str(rule.layer),
        "priority": rule.priority,
        "match": rule.match.to_yaml(),
        "pin": kernels if pinned else None,
        "restrict_to": None if pinned else kernels,
        "prefer": list(rule.prefer),
        "params": dict(rule.params),
        "numerics": _numerics(rule) if rule.numerics is not None else None,
        "fallback": list(rule.fallback),
        "file": rule.ref.file,
        "line": rule.ref.line,
    }


def _flow(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)
