"""Measure which kernel is fastest at each call of a model or an op on this machine, and keep the timings.

What is known is not measured again, unless the machine, a library or a kernel's code has changed. Policies with
`profile: autotune` use the timings; --write turns them into rules that any policy can have.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyai.cli.command import Context, Exit, UsageError
from phyai.cli.tuned import report_differences, report_outcome, report_repeats, report_store
from phyai.errors import PhyAIError

if TYPE_CHECKING:
    from phyai.policy import Policy
    from phyai.tune import Outcome, Store, TuningLayer

EXAMPLES = """
  phyai tune pi05 --checkpoint DIR
  phyai tune pi05 --checkpoint DIR --device cuda --seconds 60 --write policy.yaml
  phyai tune --op gemm --op rms_norm --repeat 3
  phyai tune --show
  phyai tune --diff before.json after.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to tune")
    what.add_argument("model", nargs="?", metavar="MODEL", help="a model: the calls that one request of it makes")
    what.add_argument("--checkpoint", metavar="DIR", help="the model's checkpoint")
    what.add_argument("--dtype", metavar="DTYPE", help="precision of the model's parameters")
    what.add_argument("--op", action="append", default=[], metavar="OP", help="an op, at the sizes of known models")
    what.add_argument(
        "--graph", action="store_true", help="with --op: as inside CUDA graphs (always, with a model there)"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--device", default="auto", metavar="NAME", help="auto (default), cpu or cuda:1")
    how.add_argument("--policy", metavar="FILE", help="policy file; without one, PHYAI_KERNEL_CONFIG")
    how.add_argument("--seconds", type=float, default=60.0, metavar="N", help="stop measuring after so long (60)")
    how.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="measure N times; say what changes, by how much"
    )
    how.add_argument("--again", action="store_true", help="measure also what is known")
    how.add_argument("--no-live", action="store_true", help="time attention beside the model, not inside it")
    how.add_argument("--store", metavar="FILE", help="the store (default: the device's, in PHYAI_KERNEL_TUNE_DIR)")
    result = parser.add_argument_group("what to do with it")
    result.add_argument("--show", action="store_true", help="show what is stored: measured what, when, under what")
    result.add_argument("--diff", nargs=2, metavar=("A", "B"), help="compare two stores")
    result.add_argument("--write", metavar="FILE", help="write the choices as rules into a policy file")
    result.add_argument("--html", metavar="FILE", help="with a model: write the decisions of all its sites as a page")


def main(args: argparse.Namespace, context: Context) -> int:
    if args.diff:
        return _diff(args, context)
    if args.model is None and not args.op and not args.show and not args.write:
        raise UsageError("give a MODEL with --checkpoint, or --op OP; or --show, --diff A B, --write FILE")
    if args.repeat < 1:
        raise UsageError(f"--repeat {args.repeat}: at least 1")
    if not args.seconds >= 0:
        raise UsageError(f"--seconds {args.seconds:g}: at least 0")
    if args.write:
        _check_written(args.write, context)
    store = _store(args, context)
    policy = context.policy(args.policy)
    outcomes: list[Outcome] = []
    if args.model is not None or args.op:
        for turn in range(args.repeat):
            again = args.again or args.repeat > 1
            run = _model if args.model is not None else _ops
            outcomes.append(run(args, context, policy, store, again, f"{turn + 1}/{args.repeat}"))
            if outcomes[-1].problem:
                context.note(f"phyai: warning: {outcomes[-1].problem}")
    layer = outcomes[-1].layer if outcomes else _stored(args, context, policy, store)
    answer: dict[str, Any] = {"store": str(store.path)}
    if outcomes:
        report_outcome(outcomes[-1], context, answer)
    if args.repeat > 1:
        report_repeats(outcomes, context, answer)
    if args.show:
        report_store(store, layer, context, answer)
    if args.write:
        _write(args, context, layer, answer)
    if context.json:
        context.emit(answer)
    return Exit.OK


def _store(args: argparse.Namespace, context: Context) -> Store:
    from phyai.tune import Store

    return Store(Path(args.store)) if args.store else Store.of(context.environment(args.device).device, context.env)


def _stored(args: argparse.Namespace, context: Context, policy: Policy, store: Store) -> TuningLayer:
    from phyai.tune import tuning_layer

    contents = store.read()
    if contents.problem:
        context.note(f"phyai: warning: {contents.problem}")
    return tuning_layer(contents.measurements, context.catalog, policy, context.environment(args.device))


def _ops(args: argparse.Namespace, context: Context, policy: Policy, store: Store, again: bool, turn: str) -> Outcome:
    from phyai.tune import Isolated, op_tasks, tune

    if args.checkpoint or args.dtype or args.html:
        raise UsageError("--checkpoint, --dtype and --html go with a MODEL")
    if find_spec("torch") is None:
        raise PhyAIError("measuring runs kernels, and torch is not installed: pip install 'torch>=2.9'")
    environment = context.machine(args.device)
    tasks = [task for op in args.op for task in op_tasks(op, context.catalog, capture=args.graph)]
    with Isolated(context.catalog, environment) as measurer, context.progress(f"tuning {turn}") as bar:
        return tune(
            tasks,
            context.catalog,
            policy,
            environment,
            measurer,
            store=store,
            seconds=args.seconds,
            again=again,
            progress=lambda done, total, _: bar(done, total),
        )


def _model(args: argparse.Namespace, context: Context, policy: Policy, store: Store, again: bool, turn: str) -> Outcome:
    from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig

    if args.op:
        raise UsageError("give a MODEL or --op, not both")
    if not args.checkpoint:
        raise UsageError(f"tuning {args.model} needs --checkpoint DIR")
    plugin = context.model(args.model)
    engine_args = EngineArgs(
        plugin.name,
        plugin.arguments_class()(checkpoint_dir=args.checkpoint),
        EngineConfig(DeviceConfig(args.device, args.dtype)),
    )
    static = policy.with_profile("static")  # what is stored is looked up while tuning, not before
    with (
        Engine(engine_args, policy=static, catalog=context.catalog) as engine,
        context.progress(f"tuning {turn}") as bar,
    ):
        outcome = engine.tune(
            seconds=args.seconds,
            store=store,
            again=again,
            live=not args.no_live,
            progress=lambda done, total, _: bar(done, total),
        )
        if args.html:
            from phyai.explain import to_html

            sites = {site.name: site.decisions for site in engine.dispatcher.report().sites}
            title = f"{plugin.name} on {engine.host.environment.device}"
            Path(args.html).write_text(to_html(sites, title=title), encoding="utf-8")
        return outcome


def _diff(args: argparse.Namespace, context: Context) -> int:
    from phyai.tune import Store
    from phyai.tune.compare import diff

    sides = []
    for name in args.diff:
        path = Path(name)
        if not path.is_file():
            raise PhyAIError(f"{name}: there is no such tuning store")
        contents = Store(path).read()
        if contents.problem:
            raise PhyAIError(contents.problem)
        sides.append(contents.measurements)
    report_differences(diff(*sides), context)
    return Exit.OK


def _check_written(file: str, context: Context) -> None:
    """Refuse before anything is measured what ``--write`` would refuse afterwards."""
    from phyai.policy import Policy, load_policy

    if Path(file).exists():
        load_policy(file, catalog=context.catalog, base=Policy())
    elif not Path(file).parent.is_dir():
        raise PhyAIError(f"--write {file} cannot be written: there is no folder {Path(file).parent}")


def _write(args: argparse.Namespace, context: Context, layer: TuningLayer, answer: dict[str, Any]) -> None:
    from phyai.policy import update_rules
    from phyai.tune.layer import section_of

    section = section_of(context.environment(args.device).device)
    update_rules(args.write, layer.rules, catalog=context.catalog, section=section)
    answer["written"] = {"file": args.write, "rules": len(layer.rules), "section": section}
    if not context.json:
        context.say(f"{len(layer.rules)} rules written to {args.write}, in the section {section!r}")
