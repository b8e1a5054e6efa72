"""A tiny world for deciding: one op, kernels that answer with their own id, tensors that are only a shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import attrs
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher
from phyai.environment import Device, Environment
from phyai.facts import FactKind, Facts
from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared
from phyai.op import Attr, Dim, Op, Part, Tensor
from phyai.policy import Defaults, Layer, Location, NumericsDemand, Policy, Restriction, Rule
from phyai.predicates import intersect, match

GEMM = Op(
    "gemm",
    "y = x @ weight.T",
    tensors=(
        Tensor("x", ("...M", "K")),
        Tensor("weight", ("N", "K"), "weight"),
        Tensor("y", ("...M", "N"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("N", "outputs"), Dim("K", "inputs")),
    aliases=("linear",),
)
ACT = Op(
    "act",
    "y = f(x), elementwise",
    tensors=(
        Tensor("x", ("...M", "D")),
        Tensor("mask", ("...M",), dtypes=("bool",), optional=True),
        Tensor("y", ("...M", "D"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("D", "columns")),
    attributes=(Attr("kind", FactKind.NAME, "relu", "which function", values=("relu", "square")),),
)
MLP = Op(
    "mlp",
    "y = act(x @ up.T) @ down.T",
    tensors=(
        Tensor("x", ("...M", "K")),
        Tensor("up", ("I", "K"), "weight"),
        Tensor("down", ("N", "I"), "weight"),
        Tensor("y", ("...M", "N"), "output"),
    ),
    dims=(Dim("M", "rows", dynamic=True, minimum=0), Dim("K", "in"), Dim("I", "inner"), Dim("N", "out")),
    attributes=(Attr("kind", FactKind.NAME, "relu", "which function", values=("relu", "square")),),
    parts=(
        Part("up", "gemm", weights={"weight": "up"}, dims={"N": "I"}),
        Part("act", "act", attrs={"kind": "kind"}, dims={"D": lambda d: d["I"]}),
        Part("down", "gemm", weights={"weight": "down"}, dims={"K": "I"}),
    ),
    compose="fake_calls:compose_mlp",
)
GPU = Environment(Device("cuda", "nvidia", "sm90", "Fake H100", 132, 80.0), {"fast": "1.2"})
CPU = Environment(Device("cpu"))


def compose_mlp(sites: Mapping[str, Any], facts: Facts) -> Any:
    up, act, down = sites["up"], sites["act"], sites["down"]

    def run(x: Any, out: Any = None, state: Any = None) -> Any:
        return down.run(act.run(up.run(x)), out=out)

    return run


@attrs.frozen
class Fake:
    """Enough of a tensor: a shape and a dtype."""

    shape: tuple[int, ...]
    dtype: str = "torch.bfloat16"

    def stride(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[i + 1 :]) for i in range(len(self.shape)))


@attrs.frozen
class Placed(Fake):
    """One that lies on a device."""

    device: str = "cpu"


def kernel(id: str, when: Mapping[str, Any] | None = None, band: Band = Band.GENERAL, **more: Any) -> Kernel:
    """A kernel that computes nothing: its ``run`` returns its id."""
    settings: dict[str, Any] = {
        "op": id.split(".")[1],
        "prepare": lambda facts, weights, params, resources: Prepared(run=lambda *x, out=None, state=None: id),
        "capture": Capture.SAFE,
        "numerics": Numerics(reproducible=True),
    }
    return Kernel(id=id, when=match(when or {}), band=band, **{**settings, **more})


def within(when: Mapping[str, Any], bands: Mapping[Band, Mapping[str, Any]]) -> dict[Band, Any]:
    """Those of ``bands`` that a kernel with this ``when`` may have: declared with others it is refused."""
    claimed = match(when)
    return {band: p for band, where in bands.items() if intersect(claimed, p := match(where)) is not None}


def plain(id: str, runs: dict[str, Any] | None = None, **more: Any) -> Kernel:
    """A kernel whose ``run`` is one function object, which ``runs`` gets by its id."""

    def run(x: Any, out: Any = None, state: Any = None) -> str:
        return id

    if runs is not None:
        runs[id] = run
    return kernel(id, prepare=lambda *_: Prepared(run=run, refresh=lambda new: None), **more)


def catalog(*kernels: Kernel, ops: tuple[Op, ...] = (GEMM, ACT, MLP)) -> Catalog:
    from phyai.composite import decomposition

    chains = [decomposition(op) for op in ops if op.composite]
    return Catalog(ops=ops, kernels=tuple(sorted([*kernels, *chains], key=lambda k: k.id)))


def rule(id: str, condition: Mapping[str, Any], *, line: int = 1, **more: Any) -> Rule:
    """A rule of ``policy.yaml``. ``restrict_to`` and ``pin`` are spelt as in a file."""
    if "restrict_to" in more:
        more["restriction"] = Restriction(tuple(more.pop("restrict_to")))
    if "pin" in more:
        more["restriction"] = Restriction((more.pop("pin"),), pin=True)
    return Rule(id=id, match=match(condition), location=Location("policy.yaml", line, 5), **more)


def policy(*rules: Rule, **defaults: Any) -> Policy:
    return Policy(rules=rules, defaults=Defaults(**defaults))


def facts(m: int = 5, k: int = 64, **more: Any) -> Facts:
    """A call of ``gemm``; dots in names are written as ``__``."""
    base = {"op": "gemm", "shape.M": m, "shape.K": k, "shape.N": 32, "dtype.x": "bf16"}
    return Facts({**base, **{name.replace("__", "."): value for name, value in more.items()}})


def dispatcher(*kernels: Kernel, rules: Iterable[Rule] = (), env: Environment = CPU, **more: Any) -> Dispatcher:
    return Dispatcher(catalog(*kernels), policy(*rules), env, **more)


def gemm_site(dispatcher: Dispatcher, layer: str = "layers.0", k: int = 64, **more: Any) -> Any:
    return dispatcher.bind("gemm", layer=layer, weights={"weight": Fake((32, k))}, dtypes={"x": "bf16"}, **more)


def x(m: int = 5, k: int = 64) -> Fake:
    return Fake((m, k))


REPRODUCIBLE = NumericsDemand(reproducible=True)
OVERRIDE = Layer.OVERRIDE
