"""What scripts share that compare cases of π0.5, each in an engine of its own: their options, engines, requests."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from phyai.catalog import Catalog
from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, RuntimeConfig
from phyai.policy import Policy
from phyai_models.bench.made_up import random_inputs
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import RandomCheckpoint
from phyai_models.pi.inputs import Inputs
from phyai_models.pi05 import PI05Args

POLICIES = Path(os.path.relpath(Path(__file__).parents[1] / "policies"))
#: More of a policy: the expert layer by layer.
LAYERS = "overrides:\n- {id: layers, match: {op: expert_steps}, restrict_to: decomposed.expert_steps}\n"


def options(doc: str | None, cases: Iterable[str], *, runs: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--checkpoint", help="directory of a checkpoint (default: random weights at full size)")
    parser.add_argument("--policy", type=Path, default=POLICIES / "pi05" / "h200_bf16.yaml")
    parser.add_argument("--case", action="append", choices=tuple(cases), help="only this case; repeat it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--cameras", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--runs", type=int, default=runs, help=f"replays of each graph (default: {runs})")
    return parser


def record_of(given: argparse.Namespace) -> dict[str, Any]:
    """What a report begins with."""
    return {
        "device": torch.cuda.get_device_name() if given.device.startswith("cuda") else "cpu",
        "torch": torch.__version__,
        "given": {name: str(value) for name, value in vars(given).items() if name != "out"},
        "cases": {},
    }


def engine_of(given: argparse.Namespace, policy: Policy, catalog: Catalog, **runtime: Any) -> Engine:
    """An engine that records graphs, where there is a GPU; ``runtime`` are more settings of :class:`RuntimeConfig`."""
    weights = given.checkpoint or RandomCheckpoint(PiConfig.standard("pi05", cameras=given.cameras))
    mode = "graph" if given.device.startswith("cuda") else "static"
    config = EngineConfig(
        DeviceConfig(given.device, given.dtype), runtime=RuntimeConfig(mode, max_batch=given.batch, **runtime)
    )
    return Engine(EngineArgs("pi05", PI05Args(weights), config), policy=policy, catalog=catalog)


def inputs_of(config: PiConfig, given: argparse.Namespace, generator: torch.Generator) -> Inputs:
    sizes = {"batch": given.batch, "cameras": given.cameras, "prompt": given.prompt_tokens}
    return random_inputs(config, generator, **sizes)
