"""What was measured on an H200 against what π0.5 and π0 are given on one: by the default order, and by the policies
that ship for it. No GPU is needed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from measured_figures import RESULTS, figures, times_of
from phyai.composite import as_resolved, is_decomposition
from phyai.environment import Environment
from phyai.policy import default_policy, load_policy
from phyai.resolver import resolve
from phyai.tune import Store, op_tasks
from phyai.tune.choose import promises
from simulated import inference

pytest.importorskip("phyai_backend_cuda")
pytest.importorskip("phyai_backend_flashinfer")

ROOT = Path(__file__).parents[2]
LIBRARIES = {"torch": "2.11.0", "triton": "3.6.0", "cupy": "13.6.0", "flashinfer": "0.7.4", "humming": "0.1.20"}
#: Two measurements of one kernel differ by so much.
NOISE = 1.05
#: And of a whole step, of which one kind of call is a small part.
STEP_NOISE = 1.005

#: Of one request: the model, and whether lengths are fixed, as where every prompt length has a graph of its own.
REQUESTS = [("pi05", True), ("pi05", False), ("pi0", True)]
POLICIES = {
    "pi05": [None, "h200_bf16", "h200_fp8", "sm90_bf16", "fp8_w8a8"],
    "pi0": [None, "h200_bf16"],
}
CASES = [
    *((family, name, fixed, 1) for family, fixed in REQUESTS for name in POLICIES[family]),
    *(("pi05", name, False, 8) for name in (None, "h200_bf16")),
]

#: Calls of one request, under the default order, that several kernels can run and of which no two were measured side by
#: side. A call that would be new here is one to measure, not to add.
UNMEASURED = {
    "ada_rms_norm expert M=50",  # the other is the same pass, in a launch that overlaps its neighbours
    "attention vision",
    "kv_write prefix T=968",
    "qkv_rope_kv_write prefix N=2560 T=968",
}


@pytest.fixture(scope="module")
def known():
    return figures()


def policy_of(family, name, catalog):
    if name is None:
        return default_policy()
    return load_policy(ROOT / "policies" / family / f"{name}.yaml", catalog=catalog).policy


def calls(family, policy, catalog, **more):
    """The decision of every kind of call, those of chains' parts among them."""
    found = {}
    made = inference("h200", policy, catalog, family=family, libraries=LIBRARIES, **more)
    waiting = [decision for _, decision in made]
    while waiting:
        decision = waiting.pop()
        found[decision.facts.replace({"layer": None})] = decision
        if is_decomposition(decision.kernel):
            waiting += decision.parts.values()
    return list(found.values())


def candidates(decision, catalog):
    """The kernels that could run the call, without the references, which are there to be right."""
    kernels = [catalog.kernel(one.kernel) for one in decision.accepted]
    return {
        k.id: as_resolved(k, decision.parts) if is_decomposition(k) else k for k in kernels if k.backend != "reference"
    }


def measured(decision, catalog, known):
    dynamic = {dim.name for dim in catalog.op(decision.op).dims if dim.dynamic}
    return times_of(decision.op, decision.facts, dynamic, candidates(decision, catalog), known)


def named(decision):
    sizes = [f"{n[6:]}={decision.facts[n]}" for n in sorted(decision.facts) if n in ("shape.M", "shape.N", "shape.T")]
    return " ".join([decision.op, str(decision.facts["role"]), *sizes])


def slower(decisions, catalog, known):
    """The choices that are slower than another kernel that was measured, and how many were compared."""
    found, compared = [], 0
    for decision in decisions:
        kernels, times = candidates(decision, catalog), measured(decision, catalog, known)
        # an overlapping launch is timed beside its neighbours: benchmarks/notes/skinny.md
        chosen = decision.kernel.id.removesuffix(".overlap")
        rivals = [us for id, us in times.items() if promises(kernels[id].numerics, decision.kernel.numerics)]
        if chosen in times:
            compared += len(times) > 1
            if times[chosen] > NOISE * min(rivals):
                found.append((named(decision), chosen, times))
        elif len(times) > 1:
            found.append((named(decision), f"{chosen}, not measured", times))
    return found, compared


@pytest.mark.parametrize(("family", "name", "fixed", "batch"), CASES)
def test_no_choice_is_slower_than_another_kernel_that_was_measured(family, name, fixed, batch, catalog, known):
    decisions = calls(family, policy_of(family, name, catalog), catalog, fixed_lengths=fixed, batch=batch)
    found, compared = slower(decisions, catalog, known)
    assert found == []
    assert compared >= (10 if batch == 1 else 1)


@pytest.mark.parametrize(("family", "name"), [(family, name) for family in POLICIES for name in POLICIES[family]])
def test_nor_where_parts_of_fused_calls_run_by_themselves(family, name, catalog, known):
    """The calls that argument specs know, those that a larger kernel usually spares among them."""
    environment, policy = Environment.simulated("h200", libraries=LIBRARIES), policy_of(family, name, catalog)
    tasks = [task for op in catalog.ops for task in op_tasks(op.name, catalog, capture=True)]
    known_calls = [task.facts(catalog, environment) for task in tasks if task.sites[0].startswith(("pi05.", "pi0."))]
    decisions = [
        resolve(facts.replace({"model.family": family}), catalog, policy, environment)
        for facts in known_calls
        if not any(name.startswith(("quant.", "parts.")) for name in facts)
    ]
    found, compared = slower(decisions, catalog, known)
    assert found == []
    assert compared >= 20


def test_what_was_not_measured_is_known(catalog, known):
    found = {
        named(decision)
        for family, fixed in REQUESTS
        for decision in calls(family, default_policy(), catalog, fixed_lengths=fixed)
        if len(candidates(decision, catalog)) > 1 and len(measured(decision, catalog, known)) < 2
    }
    assert found == UNMEASURED


# What tuning measured


@pytest.fixture(scope="module")
def tune_map():
    spec = importlib.util.spec_from_file_location("tune_map", ROOT / "benchmarks" / "tune_map.py")
    module = sys.modules["tune_map"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tune_map"]


@pytest.mark.parametrize("name", [None, "h200_bf16"])
@pytest.mark.parametrize("store", sorted(RESULTS.glob("*.store.json")), ids=lambda path: path.stem)
def test_no_choice_is_slower_than_what_tuning_measured(store, name, catalog, tune_map, known):
    environment = Environment.simulated("h200", libraries=LIBRARIES)
    policy, measurements = policy_of("pi05", name, catalog), Store(store).read().measurements
    rows = tune_map.rows(measurements, catalog, policy, environment, "pi05")
    slower = [row for row in rows if not row.within and row.slower > (STEP_NOISE if row.method == "live" else NOISE)]
    facts = {m.key: {**m.facts, **{f"shape.{dim}": size for dim, size in m.at.items()}} for m in measurements}
    slower = [row for row in slower if not faster_since(row, facts[row.key], catalog, known)]
    assert rows
    assert slower == [], tune_map.table(slower)


def faster_since(row, facts, catalog, known):
    """Whether the choice is younger than the store, and was measured faster than the best that the store knows."""
    dynamic = {dim.name for dim in catalog.op(row.op).dims if dim.dynamic}
    given = {name: value for name, value in facts.items() if value is not None}
    times = times_of(row.op, given, dynamic, {row.static, row.best}, known)
    return row.static not in row.us and len(times) == 2 and times[row.static] < times[row.best]
