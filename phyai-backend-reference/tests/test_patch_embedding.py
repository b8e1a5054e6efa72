"""The op ``patch_embedding`` as its parts: against sums over patches in float64, and bit for bit what it replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import OPS, assert_close, oracle
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher, Site
from phyai.environment import Environment
from phyai.errors import CallError
from phyai.plugins import discover
from phyai.policy import default_policy
from phyai.synthesize import SynthesizedCall, synthesize

OP = OPS["patch_embedding"]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return discover()


def small(name: str) -> SynthesizedCall:
    return synthesize(OP, next(spec for spec in OP.arg_specs if spec.name == name))


def bind(catalog: Catalog, call: SynthesizedCall) -> Site:
    dispatcher = Dispatcher(catalog, default_policy(), Environment.detect("cpu"))
    dtypes = {t.name: call.dtypes[t.name] for t in (*OP.inputs, *OP.outputs)}
    return dispatcher.bind("patch_embedding", weights=call.weights, dtypes=dtypes)


def patchwise(x: Any, w: Any, m: Any, a: dict[str, Any]) -> list[np.ndarray]:
    size = w["weight"].shape[-1]
    down, across = (length // size for length in x["x"].shape[2:])
    tokens = [
        np.einsum("bcij,ocij->bo", x["x"][:, :, r * size : (r + 1) * size, c * size : (c + 1) * size], w["weight"])
        for r in range(down) for c in range(across)
    ]  # fmt: skip
    return [np.stack(tokens, 1) + x["position"] + w.get("bias", 0)]


@pytest.mark.parametrize("given_out", [False, True])
@pytest.mark.parametrize("name", [spec.name for spec in OP.arg_specs if spec.name.startswith("small.")])
def test_every_patch_is_multiplied_and_its_position_added(catalog: Catalog, name: str, given_out: bool) -> None:
    call = small(name)
    want = oracle(patchwise, call)
    y_dtype = call.inputs["position"].dtype
    out = torch.full(want[0].shape, 99.0, dtype=y_dtype) if given_out else None
    y = bind(catalog, call).run(*call.inputs.values(), out=out)
    assert out is None or y is out
    assert y.is_contiguous()
    assert_close(call, [y], want, name)


@pytest.mark.parametrize("name", ["small.patch", "small.mixed", "small.fp32"])
def test_the_bits_are_those_of_a_convolution_site_and_an_addition(catalog: Catalog, name: str) -> None:
    call = small(name)
    x, position = call.inputs.values()
    weight = call.weights["weight"]
    dispatcher = Dispatcher(catalog, default_policy(), Environment.detect("cpu"))
    convolution = dispatcher.bind(
        "conv2d", weights=call.weights, attrs={"stride": weight.shape[-1]}, dtypes={"x": weight.dtype}
    )
    before = convolution.run(x.to(weight.dtype)).flatten(2).transpose(1, 2) + position
    assert torch.equal(bind(catalog, call).run(x, position), before)


def test_new_weights_reach_the_part(catalog: Catalog) -> None:
    call, other = small("small.fp32"), synthesize(OP, small("small.fp32").spec, seed=1)
    site = bind(catalog, call)
    site.run(*call.inputs.values())
    site.refresh(other.weights)
    x, position = call.inputs.values()
    y = F.conv2d(x, *other.weights.values(), stride=2).flatten(2).transpose(1, 2) + position
    torch.testing.assert_close(site.run(x, position), y)


def test_positions_of_other_images_are_refused(catalog: Catalog) -> None:
    call = small("small.fp32")
    x, position = call.inputs.values()
    with pytest.raises(CallError, match="5 positions for the 6 patches of 2 x 2 in an image of 4 x 6"):
        bind(catalog, call).run(x, position[:5])
