"""Which sub-commands there are. Listing them imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyai.plugins.hooks import Command

if TYPE_CHECKING:
    from phyai.catalog import Catalog

#: The sub-commands of the core, in the order in which ``phyai --help`` lists them.
BUILT_IN: tuple[Command, ...] = (
    Command("run", "run a model under a policy", "phyai.cli.run"),
    Command("explain", "say which kernel a call gets, and why", "phyai.cli.explain"),
    Command("tune", "measure which kernels are fastest here, and keep the timings", "phyai.cli.tune"),
    Command("map", "draw which kernel is chosen over a grid of sizes", "phyai.cli.map"),
    Command("policy", "check or show a policy file", "phyai.cli.policy"),
    Command("backends", "list plug-ins, and what is wrong with those that do not work", "phyai.cli.backends"),
    Command("ops", "list the ops, or describe one", "phyai.cli.ops"),
    Command("kernels", "list the kernels, or describe one", "phyai.cli.kernels"),
    Command("conformance", "test whether kernels do what they declare", "phyai.cli.conformance"),
    Command("new-backend", "write a new backend, ready to build and test", "phyai.cli.new_backend"),
    Command("inspect", "show what a checkpoint's quantization is, or why it is refused", "phyai.cli.inspect"),
)


def commands(catalog: Catalog) -> dict[str, Command]:
    """Every sub-command by name: the core's, then those of plug-ins. A plug-in cannot replace one of the core's."""
    return {command.name: command for command in (*catalog.commands, *BUILT_IN)}
