"""The command line in tests: a small catalog, and the command run in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import attrs
from phyai.catalog import Catalog
from phyai.cli import main
from phyai.environment import Library
from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.plugins import Command, Plugin, PluginState, PluginStatus
from phyai.predicates import match

ONE_RULE = "schema: phyai.kernel/v1\nrules:\n  - id: quick\n    match: {op: gemm}\n    prefer: fast.gemm\n"
TYPO = "schema: phyai.kernel/v1\nrules:\n  - id: quick\n    match: {op: gemm}\n    preferr: fast.gemm\n"


@attrs.frozen
class Model:
    name: str
    doc: str
    command: str | None = None
    roles: tuple[str, ...] = ()


def kernel(id: str, when: dict | None = None, **more) -> Kernel:
    return Kernel(
        id=id, op=id.split(".")[1], when=match(when or {}), prepare=print, capture=Capture.SAFE,
        numerics=Numerics(reproducible=True), **more,
    )  # fmt: skip


def cli_catalog() -> Catalog:
    fast = kernel(
        "fast.gemm",
        {"device.arch": ">=sm90", "shape.K": "%128", "lib.quick": ">=2"},
        doc="very fast",
        band=Band.OPTIMIZED,
    )
    plain = kernel("plain.gemm", bands={Band.SPECIALIZED: match({"shape.K": 64})})
    broken = PluginStatus(
        "sad", distribution="phyai-backend-sad", version="0.3", state=PluginState.IMPORT_ERROR,
        reason="ImportError: no driver", advice="install one",
    )  # fmt: skip
    return Catalog.build(
        [
            Plugin(
                PluginStatus("fast", distribution="phyai-backend-fast", version="1.0"),
                kernels=(fast,),
                libraries=(Library("quick", ("quick-lib-that-is-not-here",), "2.1"),),
                commands=(Command("weigh", "weigh a kernel", "json.tool"),),
                models=(Model("toy", "a toy", "toy_model_command"), Model("mute", "has no command")),
            ),
            Plugin(PluginStatus("plain", distribution="phyai-backend-plain", version="1.0"), kernels=(plain,)),
            Plugin(broken),
        ]
    )


@attrs.frozen
class Result:
    status: int
    out: str
    err: str

    @property
    def data(self):
        return json.loads(self.out)


def command(catalog: Catalog) -> Callable[..., Result]:
    """The command over a catalog: its status, and what it wrote."""

    def run(*argv: str, env: dict[str, str] | None = None) -> Result:
        out, err = io.StringIO(), io.StringIO()
        status = main(argv, env=env or {}, stdout=out, stderr=err, catalog=catalog)
        return Result(status, out.getvalue(), err.getvalue())

    return run


def alone(*argv, plugins=()):
    """What the core says where nothing else is installed."""
    out, err = io.StringIO(), io.StringIO()
    status = main(list(argv), env={}, stdout=out, stderr=err, catalog=Catalog.build(plugins))
    return status, out.getvalue() + err.getvalue()
