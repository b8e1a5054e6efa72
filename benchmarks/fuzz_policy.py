"""Mutate policy files and load them: each must load, or be refused with a PolicyError that names a line.

    python benchmarks/fuzz_policy.py --files 10000 --seed 1

Nothing else may escape, and none may take long. Exits 1 and prints the file that broke the rule.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from phyai.catalog import Catalog
from phyai.errors import PolicyError
from phyai.plugins import discover
from phyai.policy import parse_policy

CASES = Path(__file__).parents[1] / "phyai-core" / "tests" / "data" / "policies"

#: What a mutation writes in place of something: values of every type, and text that is special to YAML or the grammar.
PIECES = (
    *("null", "~", "true", "0", "-1", "1e999", "99999999999999999999", "[]", "{}", "''", '"\\x00"', "sm9O", "gemm"),
    *(
        "<=64",
        ">=sm90",
        "%0",
        "%16",
        "64..8",
        "1..",
        "*",
        "**",
        "[",
        "torch.gemm.bf16",
        "torch.*",
        "humming.gemm.w4a16",
    ),
    *(
        "&a",
        "*a",
        "&a [*a]",
        "<<: *a",
        "!!python/object:os.system",
        "!!int",
        "? x",
        ": ",
        "- ",
        "| ",
        "> ",
        "%YAML 1.1",
    ),
    *("---", "...", "\t", "\r", "\x00", "\x07", "\x85", "\u2028", "\ud800", "\ufeff"),
    *("any_of", "none_of: [{op: gemm}]", "when: {if: {op: gemm}, then: {role: a}}", "match", "id", "priority", "pin"),
    *(
        "use",
        "restrict_to",
        "prefer",
        "params",
        "numerics",
        "fallback",
        "defaults",
        "quantization",
        "overrides",
        "rules",
    ),
    *("shape.M", "device", "model.tags", "op", "layer", "attention"),
)

Mutation = Callable[[random.Random, str], str]


def _characters(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(PIECES)[: rng.randint(1, 4)] + text[at + rng.randrange(3) :]


def _word(rng: random.Random, text: str) -> str:
    words = list(re.finditer(r"[^\s,\[\]{}:]+", text))
    if not words:
        return rng.choice(PIECES)
    word = rng.choice(words)
    return text[: word.start()] + rng.choice(PIECES) + text[word.end() :]


def _delete(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.randint(1, 40) :]


def _line(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i : i + rng.randrange(2)] = [" " * rng.randrange(6) + lines[j].strip()]
    return "\n".join(lines)


def _indent(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    i = rng.randrange(len(lines))
    lines[i] = " " * rng.randrange(8) + lines[i].lstrip()
    return "\n".join(lines)


def _nest(rng: random.Random, text: str) -> str:
    depth = rng.choice((1, 3, 30, 300))
    at = rng.randrange(len(text) + 1)
    opening, closing = rng.choice((("[", "]"), ("{a: ", "}"), ("any_of: [{", "}]"), ("- ", "")))
    return text[:at] + opening * depth + "x" + closing * rng.choice((depth, depth - 1)) + text[at:]


MUTATIONS: Sequence[Mutation] = (_characters, _word, _word, _word, _delete, _line, _line, _indent, _nest)


def mutated(rng: random.Random, seeds: Sequence[str]) -> str:
    """One of ``seeds`` after a few mutations."""
    text = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        text = rng.choice(MUTATIONS)(rng, text)
    return text


def verdict(text: str, catalog: Catalog) -> str:
    """``loads``, ``refused``, or in words how the rule was broken."""
    try:
        parse_policy(text, file="fuzz.yaml", catalog=catalog)
    except PolicyError as error:
        places = [problem.location for problem in error.problems]  # type: ignore[attr-defined]
        if not places or any(place.line < 1 or place.column < 1 or place.file != "fuzz.yaml" for place in places):
            return f"a PolicyError without a place: {error}"
        if any(place.line > text.count("\n") + text.count("\r") + 2 for place in places):
            return f"a place behind the end of the file: {error}"
        return "refused"
    except BaseException as error:  # the point of the exercise
        return f"{type(error).__name__}: {error}"
    return "loads"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    catalog = discover()
    seeds = [path.read_text() for path in sorted(CASES.glob("*.yaml"))]
    outcomes: Counter[str] = Counter()
    slowest = (0.0, "")
    for number in range(args.files):
        text = mutated(random.Random(f"{args.seed}/{number}"), seeds)
        started = time.perf_counter()
        outcome = verdict(text, catalog)
        slowest = max(slowest, (time.perf_counter() - started, text))
        outcomes[outcome] += 1
        if outcome not in ("loads", "refused"):
            sys.stdout.write(f"file {number} of seed {args.seed}: {outcome}\n{text}\n")
            return 1
    sys.stdout.write(f"{args.files} files: {dict(outcomes)}; the slowest took {slowest[0]:.2f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
