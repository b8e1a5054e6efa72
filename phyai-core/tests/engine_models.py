"""A model that computes nothing, for the tests of the engine."""

from __future__ import annotations

import threading
from typing import Any

import attrs
from phyai.catalog import Catalog
from phyai.engine import Host, ModelPlugin
from phyai.plugins import Plugin, PluginStatus


@attrs.frozen
class EchoArgs:
    factor: int = 1


@attrs.define(eq=False)
class Echo:
    """Answers twice the request (times the factor); ``hold`` makes it wait until ``release`` is set."""

    args: EchoArgs
    host: Host
    closed: int = 0
    running: int = 0
    most: int = 0
    release: threading.Event = attrs.field(factory=threading.Event)
    started: threading.Event = attrs.field(factory=threading.Event)

    def step(self, request: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if request == "hold":
                self.started.set()
                assert self.release.wait(30)
                return "held"
            if isinstance(request, Exception):
                raise request
            return 2 * self.args.factor * request
        finally:
            self.running -= 1

    def close(self) -> None:
        self.closed += 1


def load(args: EchoArgs, host: Host) -> Echo:
    return Echo(args, host)


def load_norm(args: EchoArgs, host: Host) -> Echo:
    """The same, with one call site."""
    host.dispatcher.bind("layer_norm", dtypes={"x": "bf16"}, dims={"D": 8}, rows=(1, 8))
    return load(args, host)


NORM = ModelPlugin("norm", "has a call site", "engine_models:EchoArgs", "engine_models:load_norm")
ECHO = ModelPlugin("echo", "answers twice the request", "engine_models:EchoArgs", "engine_models:load")


def catalog() -> Catalog:
    return Catalog.build([Plugin(PluginStatus("echo", "phyai.models"), models=(ECHO,))])
