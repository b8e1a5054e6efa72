"""Which layout a quantized weight of π0.5's takes on an H200, against what was measured of the kernels for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from measured_figures import FP8, RESULTS
from phyai.environment import Environment
from phyai.policy import default_policy, load_policy
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.lowering import lower
from phyai.tune.choose import promises
from simulated import decisions
from test_measured_order import LIBRARIES, NOISE

for backend in ("cuda", "humming", "flashinfer"):
    pytest.importorskip(f"phyai_backend_{backend}")

SCHEMES = {
    "int4": QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16")),
    "fp8": QuantScheme(TensorQuant("fp8_e4m3", "channel")),
    "fp8_a8": QuantScheme(TensorQuant("fp8_e4m3", "channel"), TensorQuant("fp8_e4m3", "token", dynamic=True)),
}
#: What the figures call the kernels of each scheme, and Humming's own name for it.
SKINNY = {"int4": "int4 g128", "fp8": "fp8 channel"}
HUMMING = {"int4": "w4a16 g128", "fp8": "fp8_a16 channel", "fp8_a8": "fp8_a8 channel"}


def rows(file, key="rows"):
    return json.loads((RESULTS / file).read_text())[key]


def times(scheme, call):
    """µs by kernel of a product of the expert, M = 50, or of the prefix."""
    sizes = FP8[call]
    found = {}
    for row in rows("skinny.json"):
        timed = row["kind"] == "time" and row["call"].startswith(f"{call} M=") and row["kernel"] == SKINNY.get(scheme)
        if timed and row["default"]:
            found[f"cuda.gemm.skinny_{scheme}"] = row["us"]
    for row in rows("rows_fp8.json") if scheme == "fp8_a8" else ():
        if row.get("call") == call and row["kernel"].count(".") == 2:
            found[row["kernel"]] = row["us"]
    for row in rows("humming_gemm.json", "results"):
        if row["scheme"] == HUMMING[scheme] and (row["M"], row["N"], row["K"]) == tuple(sizes[d] for d in "MNK"):
            found[row["row"]] = row["us"]
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("call", [call for call in FP8 if "block" not in call and "M" in FP8[call]])
def test_the_layout_is_that_of_the_fastest_kernel_that_was_measured(call, scheme, catalog):
    measured, sizes = times(scheme, call), FP8[call]
    if len(measured) < 2:
        assert call.startswith("prefix")  # of many rows there are figures of the 8-bit products
        assert scheme != "fp8_a8"
        return
    facts = {
        "op": "gemm", "role": call.split()[0], "shape.N": sizes["N"], "shape.K": sizes["K"], "mode.capture": True,
        **dict.fromkeys(("dtype.x", "dtype.y"), "bf16"), **SCHEMES[scheme].facts(),
    }  # fmt: skip
    environment = Environment.simulated("h200", libraries=LIBRARIES)
    rows = (sizes["M"],)
    choice = lower(facts, catalog=catalog, policy=default_policy(), environment=environment, rows=rows)
    chosen = next(c for c in choice.considered if c.layout == choice.layout).kernels[sizes["M"]]
    numerics = catalog.kernel(chosen).numerics
    rivals = {id: us for id, us in measured.items() if promises(catalog.kernel(id).numerics, numerics)}
    assert measured[chosen] <= NOISE * min(rivals.values()), measured


@pytest.mark.parametrize("preset", ["w4a16_g128", "w8a16", "fp8_w8a8", "w8a8_int8", "w4a8", "mxfp4", "nvfp4"])
def test_no_call_of_a_preset_is_left_to_a_reference(preset, catalog):
    policy = load_policy(Path(__file__).parents[2] / "policies" / "pi05" / f"{preset}.yaml", catalog=catalog).policy
    found = decisions("h200", policy, catalog, fixed_lengths=True, libraries=LIBRARIES)
    assert {call: ids for call, ids in found.items() if any(id.startswith("reference.") for id in ids)} == {}
