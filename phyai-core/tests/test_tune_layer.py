"""Timings as a policy layer: what they decide, when they do not count, and who wins over them."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.dispatch import Dispatcher
from phyai.environment import Device, Environment
from phyai.explain import to_text
from phyai.kernel import Band
from phyai.policy import Layer, Policy, Restriction, Rule, load_policy
from phyai.policy import update_rules as write_rules
from phyai.predicates import match
from phyai.resolver import resolve
from phyai.tune import Measurement, Store, TuneError, tune, tuning_layer, with_tuning
from phyai.tune.broadcast import apply, pack, unpack
from phyai.tune.compare import diff, spread
from phyai.tune.key import CallKey, bucket_of
from phyai.tune.layer import facts_of
from tune_world import CPU, Clock, catalog, kernel, measurer, task, timed

torch = pytest.importorskip("torch", reason="tensors are torch's")

OPT = Band.OPTIMIZED


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def world(clock):
    """The untuned order is a, b; b is the faster one."""
    return catalog(timed("a.activation", clock, 3e-6, band=OPT), timed("b.activation", clock, 1e-6))


def tuned(world, clock, *tasks, policy=None, **more):
    return tune(tasks or (task(),), world, policy or Policy(), CPU, measurer(world, clock), **more)


def decide(world, policy, one=None, **changes):
    facts = (one or task()).facts(world, CPU).replace({n.replace("__", "."): v for n, v in changes.items()})
    return resolve(facts, world, policy, CPU)


# What the layer decides, and how it explains itself


def test_the_faster_kernel_is_chosen_and_the_decision_shows_the_layer_and_the_times(world, clock):
    policy = tuned(world, clock).layer.onto(Policy())
    decision = decide(world, policy)
    assert (decision.kernel.id, decision.decided_by) == ("b.activation", "tuning")
    assert "measured 1.00 µs ±0.0%; a.activation 3.00 µs" in decision.why()
    assert "measured 3.00 µs ±0.0%, in place without tuning" in decision.accepted[1].why
    assert "decided by tuning" in to_text(decision)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("mine", match({"op": "activation"}), prefer=("a.activation",)),
        Rule("mine", match({"op": "activation"}), restriction=Restriction(("a.*",))),
        Rule("mine", match({"op": "activation"}), restriction=Restriction(("a.activation",), pin=True)),
        Rule("mine", match({"op": "activation"}), prefer=("a.activation",), layer=Layer.OVERRIDE),
    ],
    ids=["prefer", "restrict_to", "pin", "override"],
)
def test_a_users_rule_wins_over_tuning_and_says_so(world, clock, rule):
    policy = tuned(world, clock).layer.onto(Policy(rules=(rule,)))
    decision = decide(world, policy)
    assert decision.kernel.id == "a.activation"
    assert decision.decided_by == str(rule.layer)
    assert {ref.layer for ref in decision.matched} == {str(rule.layer), "tuning"}


def test_tuning_wins_over_the_shipped_default(world, clock):
    shipped = Rule("default", match({"op": "activation"}), prefer=("a.activation",), layer=Layer.SHIPPED)
    assert decide(world, tuned(world, clock).layer.onto(Policy(rules=(shipped,)))).kernel.id == "b.activation"


@pytest.mark.parametrize(
    "changes",
    [{"role": "vision"}, {"role": None}, {"shape__M": 9}, {"shape__M": 4}, {"shape__D": 32}, {"dtype__x": "bf16"},
     {"attrs__activation": "gelu"}, {"mode__capture": True}, {"device__name": "another"}],
    ids=str,
)  # fmt: skip
def test_calls_of_another_kind_are_left_alone(world, clock, changes):
    policy = tuned(world, clock).layer.onto(Policy())
    assert decide(world, policy, **changes).kernel.id == "a.activation"


@pytest.mark.parametrize("m", [5, 6, 7, 8])
def test_all_sizes_of_the_bucket_share_the_choice(world, clock, m):
    policy = tuned(world, clock, task(7)).layer.onto(Policy())
    assert decide(world, policy, shape__M=m).kernel.id == "b.activation"


@given(st.integers(1, 1 << 20))
@settings(max_examples=100)
def test_a_bucket_holds_its_size_and_buckets_do_not_overlap(size):
    low, high = bucket_of(size)
    assert low <= size <= high
    assert bucket_of(low) == bucket_of(high) == (low, high)
    assert bucket_of(high + 1)[0] == high + 1


def test_a_kernel_that_was_not_measured_is_not_put_behind_those_that_were(clock):
    # c takes only multiples of eight: at M = 7 it was no candidate, so at M = 8 the timings say nothing
    world = catalog(
        kernel("c.activation", when={"shape.M": "%8"}, band=Band.SPECIALIZED),
        timed("a.activation", clock, 3e-6, band=OPT),
        timed("b.activation", clock, 1e-6),
    )
    policy = tuned(world, clock, task(7)).layer.onto(Policy())
    assert decide(world, policy, shape__M=7).kernel.id == "b.activation"
    assert decide(world, policy, shape__M=6).kernel.id == "b.activation"
    assert decide(world, policy, shape__M=8).kernel.id == "c.activation"


def test_facts_that_a_candidate_reads_are_part_of_the_key(clock):
    world = catalog(
        timed("a.activation", clock, 3e-6, band=OPT), timed("b.activation", clock, 1e-6, when={"phase": ["x", "y"]})
    )
    key = CallKey.of(task().facts(world, CPU), world)
    assert "phase" in key.facts
    assert "phase" not in CallKey.of(task().facts(catalog(), CPU), catalog()).facts


def test_keys_differ_where_calls_do(world):
    tasks = [task(), task(100), task(role="vision"), task(role=None), task(d=32)]
    assert len({t.key(world, CPU).text for t in tasks}) == len(tasks)


# When a measurement does not count


def stale(measurements, world, environment=CPU, policy=None):
    layer = tuning_layer(measurements, world, policy or Policy(), environment)
    assert layer.chosen == ()
    (why,) = layer.stale.values()
    return why


def test_another_library_makes_it_stale(world, clock):
    measured = tuned(world, clock).measured
    assert stale(measured, world, attrs.evolve(CPU, libraries={"torch": "2.0"})) == "lib.torch was 1.0, is 2.0"


def test_another_device_makes_it_stale(world, clock):
    (measured,) = tuned(world, clock).measured
    other = attrs.evolve(measured, stamp={**measured.stamp, "device": "Other CPU", "cpus": "512"})
    why = stale([other], world)
    assert "device was Other CPU" in why
    assert "number of CPUs was 512" in why


def test_what_is_not_known_of_a_simulated_device_is_not_compared(world, clock):
    (measured,) = tuned(world, clock).measured
    elsewhere = Environment(Device("cpu", name="test"), {"torch": "1.0"}, ("it is simulated",))
    there = attrs.evolve(measured, stamp={"device": "test", "lib.torch": "1.0", "driver": "550.54", "cpus": "512"})
    assert tuning_layer([there], world, Policy(), elsewhere).rules


def test_other_code_makes_it_stale(world, clock):
    (measured,) = tuned(world, clock).measured
    results = {id: attrs.evolve(result, source="0 0ld") for id, result in measured.results.items()}
    assert stale([attrs.evolve(measured, results=results)], world) == (
        "the code of a.activation, or what it is given, has changed"
    )


def test_other_params_make_it_stale(world, clock):
    measured = tuned(world, clock).measured
    policy = Policy(rules=(Rule("p", match({"op": "activation"}), params={"tile": 64}),))
    assert "what it is given, has changed" in stale(measured, world, policy=policy)


def test_a_new_kernel_makes_it_stale(world, clock):
    measured = tuned(world, clock).measured
    more = catalog(*(k for k in world.kernels if k.op == "activation"), kernel("c.activation"))
    policy = Policy(rules=(Rule("r", match({"op": "activation"}), prefer=("c.activation",)),))
    assert stale(measured, more, policy=policy) == "c.activation may run the call and was not measured"


def test_what_is_stale_is_said_and_measured_again(world, clock, tmp_path):
    store = Store(tmp_path / "s.json")
    (old,) = tuned(world, clock, store=store).measured
    store.path.unlink()
    store.add([attrs.evolve(old, stamp={**old.stamp, "lib.torch": "0.9"})])
    outcome = tuned(world, clock, store=store)
    assert outcome.stale == {old.key: "lib.torch was 0.9, is 1.0"}
    assert len(outcome.measured) == 1
    assert len(store.read().measurements) == 2  # the old timings are kept
    again = tuned(world, clock, store=store)
    assert (again.known, again.measured) == ((old.key,), ())


def test_the_newest_measurement_that_counts_is_used(world, clock):
    (old,) = tuned(world, clock).measured
    slow = {
        id: attrs.evolve(r, samples=tuple(9e-6 for _ in r.samples)) for id, r in old.results.items() if id[0] == "b"
    }
    newer = attrs.evolve(old, when="2999", results={**old.results, **slow})
    newest = attrs.evolve(old, when="3999", stamp={"device": "elsewhere"})
    (chosen,) = tuning_layer([newest, old, newer], world, Policy(), CPU).chosen
    assert chosen.measurement == newer
    assert chosen.choice.winner == "a.activation"


def test_measurements_of_ops_that_are_not_installed_are_no_error(world, clock):
    (measured,) = tuned(world, clock).measured
    layer = tuning_layer([attrs.evolve(measured, op="gone", key="gone")], world, Policy(), CPU)
    assert layer.stale == {"gone": "no such op is installed"}


# The profile


def test_the_profile_turns_tuning_on_and_changes_nothing_else(world, clock, tmp_path):
    environ = {"PHYAI_KERNEL_TUNE_DIR": str(tmp_path)}
    tuned(world, clock, store=Store.of(CPU.device, environ))
    policy = Policy(rules=(Rule("mine", match({"role": "x"}), prefer=("a.*",)),), quantization={"default": None})
    assert with_tuning(policy, world, CPU, environ).policy is policy
    on = with_tuning(policy.with_profile("autotune"), world, CPU, environ)
    assert decide(world, on.policy).decided_by == "tuning"
    rest = [rule for rule in on.policy.rules if rule.layer is not Layer.TUNING]
    assert attrs.evolve(on.policy, rules=tuple(rest), profile=None) == policy


def test_a_corrupt_store_is_said_and_decides_nothing(world, tmp_path):
    environ = {"PHYAI_KERNEL_TUNE_DIR": str(tmp_path)}
    Store.of(CPU.device, environ).path.write_text("{")
    tuned_policy = with_tuning(Policy(profile="autotune"), world, CPU, environ)
    assert "is corrupt" in tuned_policy.problem
    assert decide(world, tuned_policy.policy).kernel.id == "a.activation"


# Written as rules


def test_written_rules_reload_to_the_same_choices_and_keep_a_persons_comments(world, clock, tmp_path):
    tasks = (task(), task(100), task(role=None), task(role="vision", d=48))
    outcome = tuned(world, clock, *tasks)
    file = tmp_path / "policy.yaml"
    file.write_text(
        "# what the team decided\nschema: phyai.kernel/v1   # v1\nrules:\n  - id: mine  # by hand\n"
        "    match: {op: activation, role: head}\n    prefer: [a.activation]\n"
    )
    write_rules(file, outcome.layer.rules, catalog=world)
    text = file.read_text()
    assert text.startswith("# what the team decided\nschema: phyai.kernel/v1   # v1\nrules:\n  - id: mine  # by hand\n")
    loaded = load_policy(file, catalog=world, base=Policy())
    assert loaded.warnings == ()
    layered = outcome.layer.onto(Policy())
    for one in (*tasks, task(role="head"), task(5), task(4), task(1000)):
        written, measured = decide(world, loaded.policy, one), decide(world, layered, one)
        assert written.kernel.id == measured.kernel.id
    write_rules(file, outcome.layer.rules, catalog=world)
    assert file.read_text() == text


# Several ranks


def test_another_process_comes_to_the_same_choices_from_one_message(world, clock):
    data = pack(tuned(world, clock).layer)
    dispatcher = Dispatcher(world, Policy(), CPU)
    site = dispatcher.bind(
        "activation", role="expert", dtypes={"x": "fp32"}, dims={"D": 16}, attrs={"activation": "silu"}
    )
    assert site.decide(M=8).kernel.id == "a.activation"
    change = apply(dispatcher, data)
    assert change.thawed == (site.name,)
    assert site.decide(M=8).kernel.id == "b.activation"


def test_a_rank_that_would_choose_otherwise_refuses(world, clock):
    data = pack(tuned(world, clock).layer)
    pin = Rule("pin", match({"op": "activation"}), restriction=Restriction(("a.activation",), pin=True))
    with pytest.raises(TuneError, match="would choose other kernels than the one that tuned"):
        unpack(data, Dispatcher(world, Policy(rules=(pin,)), CPU))
    with pytest.raises(TuneError, match=r"lib\.torch was 1\.0, is 9"):
        unpack(data, Dispatcher(world, Policy(), attrs.evolve(CPU, libraries={"torch": "9"})))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"schema": "x"}', b"\x80\x04."], ids=str)
def test_a_message_that_is_none_is_refused(world, data):
    with pytest.raises(TuneError, match="no tuning result can be read"):
        unpack(data, Dispatcher(world, Policy(), CPU))


# Comparing


def test_tunings_that_differ_within_the_noise_do_not_really_disagree():
    from phyai.tune.choose import Untuned, choose
    from phyai.tune.layer import Chosen, TuningLayer
    from phyai.tune.record import Result
    from tune_world import measurement

    def layer(a, b):
        one = attrs.evolve(measurement(a_x=1.0, b_x=1.0), results={"a.x": Result(a), "b.x": Result(b)})
        kernels = (kernel("a.x"), kernel("b.x"))
        return TuningLayer(chosen=(Chosen(one, choose(one.results, Untuned(kernels)), match({})),))

    noisy = layer((0.5, 1.0, 1.5), (0.3, 0.9, 1.6)), layer((1.5, 1.5, 1.5), (1.0, 1.0, 1.4))
    (between,) = spread(noisy)
    assert (between.choices, between.agrees, between.real) == (("a.x", "b.x"), False, False)
    clear = layer((1.0,) * 9, (2.0,) * 9), layer((2.0,) * 9, (1.0,) * 9)
    (between,) = spread(clear)
    assert (between.agrees, between.real, between.gains) == (False, True, (2.0, 2.0))


def test_two_stores_are_compared_by_kind_of_call():
    from tune_world import measurement

    before = [measurement("same", a_x=1.0, b_x=2.0), measurement("gone"), measurement("flip", a_x=1.0, b_x=2.0)]
    after = [measurement("same", 5, a_x=1.5, b_x=3.0), measurement("flip", 5, a_x=2.0, b_x=1.0), measurement("new")]
    found = {one.key: one for one in diff(before, after)}
    assert found["same"].ratios() == {"a.x": 1.5, "b.x": 1.5}
    assert found["flip"].fastest == ("a.x", "b.x")
    assert (found["gone"].fastest, found["new"].fastest) == (("a.x", None), (None, "a.x"))


def test_the_facts_of_a_measured_call_include_those_that_its_op_derives(world):
    """A store holds what a call was asked with; that its kernels lie side by side follows from it."""
    static = {"shape.kernel_h": 14, "shape.kernel_w": 14, "attrs.stride": 14, "attrs.padding": 0, "attrs.dilation": 1}
    one = Measurement(
        key="conv2d", op="conv2d", facts=static, bucket={"shape.B": (3, 4)}, at={"B": 3},
        when="2026-01-01T00:00:00+00:00", method="graph", stamp={}, incumbent="a.conv2d", results={},
    )  # fmt: skip
    facts = facts_of(one, world.op("conv2d"), CPU)
    assert facts["attrs.patches"] is True
    assert facts["shape.B"] == 3
