"""What was measured on an H200 against what is chosen for one: the default order, and the policies that ship for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from phyai.environment import Environment
from phyai.plugins import discover
from phyai.policy import default_policy, load_policy
from phyai.resolver import resolve
from phyai.tune import op_tasks

pytest.importorskip("phyai_backend_cuda")
pytest.importorskip("phyai_backend_flashinfer")

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIBRARIES = {"torch": "2.11.0", "triton": "3.6.0", "cupy": "13.6.0", "flashinfer": "0.7.4"}
#: Two measurements of one kernel differ by so much.
NOISE = 1.05

#: The op of each call that was measured, and the argument spec that it is one of.
CALLS = {
    "rms_norm M=50 D=1024": ("rms_norm", "pi0.expert"),
    "rms_norm M=968 D=2048": ("rms_norm", "pi05.prefix"),
    "rms_norm_add M=50 D=1024": ("rms_norm_add", "pi0.expert"),
    "rms_norm_add M=968 D=2048": ("rms_norm_add", "pi05.prefix"),
    "ada_rms_norm M=50 D=1024": ("ada_rms_norm", "pi05.expert"),
    "gated_residual M=50 D=1024": ("gated_residual", "pi05.expert"),
    "layer_norm M=768 D=1152": ("layer_norm", "pi05.vision"),
    "layer_norm_add M=768 D=1152": ("layer_norm_add", "pi05.vision"),
    "mlp M=768 K=N=1152 I=4304": ("mlp", "pi05.vision"),
    "embedding scaled M=200 D=2048": ("embedding", "pi05.prefix"),
    "gated_activation gelu_tanh M=50 I=4096": ("gated_activation", "pi05.expert"),
    "gated_activation gelu_tanh M=968 I=16384": ("gated_activation", "pi05.prefix"),
    "rope M=50": ("rope", "pi05.expert"),
    "rope M=968": ("rope", "pi05.prefix"),
    "expert qkv M=50 N=2560 K=1024": ("gemm", "pi05.expert.qkv"),
    "expert o M=50 N=1024 K=2048": ("gemm", "pi05.expert.o"),
    "expert gate_up M=50 N=8192 K=1024": ("gemm", "pi05.expert.gate_up"),
    "expert down M=50 N=1024 K=4096": ("gemm", "pi05.expert.down"),
}
#: The kernels behind what the figures call otherwise.
NAMED = {
    "torch.gemm (cuBLAS)": "torch.gemm.bf16",
    "torch, eager": "reference.ada_rms_norm",
    "torch.addcmul": "torch.gated_residual",
    "torch: add_, layer_norm": "decomposed.layer_norm_add",
    "torch: linear, gelu, linear": "decomposed.mlp",
}
#: How `cuda.gemm.skinny_16bit` cuts these products up: see benchmarks/notes/skinny.md.
CUTS = {"qkv": [1, 2, 8], "o": [1, 4, 8], "gate_up": [1, 1, 8], "down": [1, 4, 8]}


def measured() -> dict[str, dict[str, float]]:
    """µs of each kernel, by call."""
    found: dict[str, dict[str, float]] = {}
    for file in ("rows.json", "rows_gemm.json"):
        for row in json.loads((RESULTS / file).read_text())["rows"]:
            found.setdefault(row["call"], {})[NAMED.get(row["kernel"], row["kernel"])] = row["us"]
    for row in json.loads((RESULTS / "skinny.json").read_text())["rows"]:
        part = row.get("call", "").removeprefix("expert ").partition(" M=")[0]
        if row["kind"] == "time" and row["kernel"] == "bf16" and row["cut"] == CUTS.get(part):
            found[row["call"]]["cuda.gemm.skinny_16bit"] = row["us"]
    return {call: found[call] for call in CALLS}


MEASURED = measured()


@pytest.fixture(scope="module")
def catalog():
    return discover({})


def chosen(call, policy, catalog, family="pi05") -> str:
    op, spec = CALLS[call]
    environment = Environment.simulated("h200", libraries=LIBRARIES)
    task = next(t for t in op_tasks(op, catalog, capture=True) if t.sites == (spec,))
    facts = task.facts(catalog, environment).replace({"model.family": family})
    return resolve(facts, catalog, policy, environment).kernel.id


def test_every_product_has_a_time_of_its_own_kernel():
    assert [call for call in CALLS if CALLS[call][0] == "gemm" and "cuda.gemm.skinny_16bit" not in MEASURED[call]] == []


@pytest.mark.parametrize("call", CALLS)
def test_the_default_order_chooses_what_measured_fastest(call, catalog):
    times = MEASURED[call]
    kernel = chosen(call, default_policy(), catalog)
    assert kernel in times, times
    assert times[kernel] <= NOISE * min(times[id] for id in times if "{" not in id), times


@pytest.mark.parametrize("policy", ["pi05/h200_bf16.yaml", "pi0/h200_bf16.yaml", "pi05/h200_fp8.yaml"])
@pytest.mark.parametrize("call", CALLS)
def test_a_policy_for_the_h200_chooses_what_measured_fastest(call, policy, catalog):
    times = MEASURED[call]
    loaded = load_policy(ROOT / "policies" / policy, catalog=catalog).policy
    # an overlapping launch is timed beside its neighbours: benchmarks/notes/skinny.md
    kernel = chosen(call, loaded, catalog, policy.partition("/")[0]).removesuffix(".overlap")
    assert times[kernel] <= NOISE * min(times[id] for id in times if "{" not in id), times
