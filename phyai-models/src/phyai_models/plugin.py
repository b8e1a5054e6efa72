"""What this distribution declares: its models and commands. Imports no tensor library."""

from __future__ import annotations

from collections.abc import Iterable

from phyai.engine import ModelPlugin
from phyai.plugins import hookimpl
from phyai.plugins.hooks import Command

PLUGIN_API = 1

#: The parts of π0 and π0.5.
ROLES = ("vision", "prefix", "expert", "head")


@hookimpl
def phyai_models() -> Iterable[ModelPlugin]:
    """π0.5 and π0."""
    return [
        ModelPlugin(
            "pi05", "π0.5: images, instruction and state to an action chunk, by flow matching",
            "phyai_models.pi05:PI05Args", "phyai_models.pi05:load", "phyai_models.pi05.command",
            "phyai_models.pi.example:batch", "phyai_models.pi.study:study", ROLES,
        ),
        ModelPlugin(
            "pi0", "π0: as π0.5, with the state as a token and without adaptive normalization",
            "phyai_models.pi0:PI0Args", "phyai_models.pi0:load", "phyai_models.pi0.command",
            "phyai_models.pi.example:batch", "phyai_models.pi.study:study", ROLES,
        ),
    ]  # fmt: skip


@hookimpl
def phyai_commands() -> Iterable[Command]:
    """The demonstration, and what works on any checkpoint."""
    return [
        Command(
            "bench", "time a model, stage by stage, beside its floor and plain PyTorch", "phyai_models.bench.command"
        ),
        Command("demo", "run a small π0.5 on photographs under two policies", "phyai_models.demo.command"),
        Command(
            "quantize", "write a checkpoint quantized as a policy says, and what that cost",
            "phyai_models.quantized.quantize_command",
        ),
        Command(
            "sensitivity", "measure which layers bear quantization; write a mixed-precision policy",
            "phyai_models.quantized.sensitivity_command",
        ),
        Command(
            "dequantize", "write a checkpoint's linear weights as float32", "phyai_models.quantized.dequantize_command"
        ),
    ]  # fmt: skip
