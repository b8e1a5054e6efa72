"""Measure which layers bear quantization, and write a mixed-precision policy that meets a budget.

The budget is the smallest cosine that any sample's answer may have with the original model's: means hide failures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from phyai.cli.command import Context, Exit
from phyai.errors import InputError

from phyai_models.quantized.groups import BY
from phyai_models.quantized.quiet import warnings_once

EXAMPLES = """
  phyai sensitivity ./checkpoint --policy policies/pi05/w4a16_g128.yaml --budget 0.99 --out mixed.yaml
  phyai sensitivity ./checkpoint --policy w4.yaml --policy w8.yaml --inputs observations.safetensors --by layer
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT", help="a checkpoint of an installed model, in ordinary precision")
    parser.add_argument(
        "--policy", action="append", required=True, metavar="FILE",
        help="what layers may become (repeat it: each layer may then take any of them, or keep its precision)",
    )  # fmt: skip
    parser.add_argument("--budget", type=float, default=0.99, help="the worst sample's cosine (default: 0.99)")
    parser.add_argument("--out", metavar="FILE", help="the mixed-precision policy to write")
    parser.add_argument("--inputs", metavar="FILE", help="observations, a batch in lerobot's names; default: made up")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="observations and noises (default: 8)")
    parser.add_argument("--by", choices=BY, default="kind", help="group equal layers of all depths, or none")
    parser.add_argument("--tries", type=int, default=16, metavar="N", help="mixtures to measure at most (default: 16)")


@warnings_once()
def main(args: argparse.Namespace, context: Context) -> int:
    from phyai.engine.plugin import study_of
    from phyai.policy import parse_policy

    from phyai_models.quantized.mixed_policy import mixed_policy
    from phyai_models.quantized.report import Answers, unquantized
    from phyai_models.quantized.sensitivity import measure_sensitivity

    if args.out and Path(args.out).exists():
        raise InputError(f"{args.out} exists and is not overwritten")
    if args.out and not Path(args.out).parent.is_dir():
        raise InputError(f"--out {args.out} cannot be written: there is no folder {Path(args.out).parent}")
    policies = {name: context.policy(name) for name in args.policy}
    how = {"inputs": args.inputs, "samples": args.samples}
    with context.progress("measuring") as advance:
        found = measure_sensitivity(
            args.checkpoint, policies, args.budget, catalog=context.catalog, by=args.by, tries=args.tries,
            progress=advance, **how,
        )  # fmt: skip
    first = policies[args.policy[0]]
    text = mixed_policy(found, first, args.checkpoint, args.inputs or "made-up observations")
    mixed = parse_policy(text.encode(), file=args.out or "mixed policy", catalog=context.catalog).policy
    study = study_of(args.checkpoint, context.catalog)
    assert study is not None  # it was measured
    with context.progress("running the written policy") as advance:
        advance(0, 1)
        original = study.answers(unquantized(first), **how)
        verified = Answers.between(study.answers(mixed, **how), original)
    worst = verified.cosine[verified.worst]
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8")
    if context.json:
        context.emit({**found.to_json(), "out": args.out, "verified_worst_cosine": worst})
        return Exit.OK if worst >= args.budget else Exit.REFUSED
    rows = []
    for place, (g, o) in enumerate(found.ranking()):
        group, option = found.groups[g], found.groups[g].options[o]
        taken = "yes" if found.chosen.mixture[g] == o else ""
        rows.append(
            (
                str(place + 1), group.name, option.scheme.name, f"{group.nbytes:,}", f"{option.nbytes:,}",
                f"{found.alone[g, o].worst:.6f}", taken,
            )
        )  # fmt: skip
    columns = ("rank", "group", "as", "bytes", "become", "worst cosine alone", "taken")
    context.table(columns, rows, title="what each group costs alone, the cheapest first")
    context.say(
        f"all together: worst cosine {found.together.worst:.6f} in {found.together.nbytes:,} bytes of "
        f"{found.nbytes:,}; {len(found.tried)} mixtures were measured"
    )
    context.say(
        f"mixed: worst cosine {worst:.6f} (budget {args.budget:g}) in {found.chosen.nbytes:,} bytes"
        + (f", written to {args.out}" if args.out else "")
    )
    return Exit.OK if worst >= args.budget else Exit.REFUSED
