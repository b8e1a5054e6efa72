"""Measuring: interleaved samples on a fake clock, faults, and what disqualifies a candidate."""

from __future__ import annotations

import itertools
import random

import attrs
import pytest
from phyai.kernel import Band, Capture, Numerics
from phyai.policy import Defaults, NumericsDemand, Policy, default_policy
from phyai.tune import Outcome, Settings, tune
from phyai.tune.measure import interleave
from phyai.tune.timers import CpuTimer, rotations
from tune_world import CPU, FAULTS, Clock, catalog, kernel, measurer, silu, task, timed

torch = pytest.importorskip("torch", reason="tensors are torch's")

OPT, GENERAL = Band.OPTIMIZED, Band.GENERAL


def tuned(world, clock, policy=None, tasks=None, **settings) -> Outcome:
    return tune(tasks or [task()], world, policy or Policy(), CPU, measurer(world, clock, **settings))


def only(outcome):
    (chosen,) = outcome.layer.chosen
    return chosen


# Timing


def test_a_fake_clock_measures_exactly_what_kernels_take():
    clock = Clock()
    world = catalog(timed("a.activation", clock, 3e-6, band=OPT), timed("b.activation", clock, 4e-6))
    results = only(tuned(world, clock)).measurement.results
    assert results["a.activation"].median == pytest.approx(3e-6)
    assert results["b.activation"].median == pytest.approx(4e-6)


def test_samples_are_interleaved_and_every_candidate_goes_first_in_turn():
    order = []
    samplers = {id: (lambda id=id: order.append(id) or 1.0) for id in "abc"}
    interleave(samplers, Settings(rounds=3, trial=3))
    assert "".join(order) == "abcbcacab"


def test_drift_meets_all_candidates_alike():
    # the machine slows down by half while measuring; equal kernels stay equal
    clock = Clock()
    times = ((1 + n / 100) * 1e-6 for n in itertools.count())
    world = catalog(timed("a.activation", clock, times, band=OPT), timed("b.activation", clock, times))
    results = only(tuned(world, clock)).measurement.results
    assert results["a.activation"].median == pytest.approx(results["b.activation"].median, rel=0.05)


def test_hopeless_candidates_are_stopped_early_and_keep_their_timings():
    clock = Clock()
    world = catalog(timed("a.activation", clock, 1e-6, band=OPT), timed("b.activation", clock, 2e-6))
    results = only(tuned(world, clock, rounds=15, trial=3)).measurement.results
    assert (len(results["a.activation"].samples), results["a.activation"].stopped) == (15, False)
    assert (len(results["b.activation"].samples), results["b.activation"].stopped) == (3, True)


def test_a_candidate_that_is_merely_slower_is_not_stopped():
    taken = interleave({"a": lambda: 1.0, "b": lambda: 1.4}, Settings(rounds=10, trial=3, hopeless=1.5))
    assert (len(taken["b"].samples), taken["b"].stopped) == (10, False)


def test_the_cpus_timer_repeats_short_calls_and_rotates_over_the_sets():
    now, called = [0.0], []

    def call(name):
        def run():
            called.append(name)
            now[0] += 1e-3

        return run

    timer = CpuTimer(clock=lambda: now[0], shortest=4e-3)
    sample = timer.load([call("a"), call("b")])
    called.clear()
    assert sample() == pytest.approx(1e-3)
    assert called == ["a", "b", "a", "b", "a"]
    called.clear()
    sample()
    assert called == ["b", "a", "b", "a", "b"]


@pytest.mark.parametrize("nbytes", [1, 1000, 1 << 20, 1 << 25, 1 << 30])
def test_rotated_sets_exceed_the_cache_unless_there_would_be_too_many(nbytes):
    sets = rotations(nbytes, 1 << 26, 16)
    assert sets == 16 or sets * nbytes >= 1 << 26
    assert sets == 1 or (sets - 1) * nbytes < 1 << 26


# A clock that does not run forward


def test_samples_in_which_the_clock_went_backwards_are_taken_again():
    clock = Clock()
    times = itertools.cycle([1e-6, 1e-6, -5.0])
    world = catalog(timed("a.activation", clock, times, band=OPT), timed("b.activation", clock, 1.1e-6))
    result = only(tuned(world, clock, rounds=9)).measurement.results["a.activation"]
    assert set(result.samples) == {1e-6}
    assert len(result.samples) == 9


def test_a_clock_that_always_runs_backwards_times_nothing_and_chooses_nothing():
    clock = Clock()
    world = catalog(timed("a.activation", clock, -1e-6, band=OPT), timed("b.activation", clock, -2e-6))
    outcome = tuned(world, clock)
    assert outcome.layer.chosen == ()
    assert "the clock ran backwards, or stood still, in 30 of 30 samples" in outcome.failures["a.activation"]


# The incumbent stays unless the win exceeds the noise


@pytest.mark.parametrize(("rival", "wins"), [(1.00e-6, False), (0.99e-6, False), (0.97e-6, True), (0.5e-6, True)])
def test_without_noise_a_rival_wins_by_more_than_the_margin(rival, wins):
    clock = Clock()
    world = catalog(timed("a.activation", clock, 1e-6, band=OPT), timed("b.activation", clock, rival))
    choice = only(tuned(world, clock)).choice
    assert choice.incumbent == "a.activation"
    assert (choice.winner == "b.activation") is wins


def test_a_win_inside_the_noise_leaves_the_incumbent_and_one_outside_does_not():
    # uniform on [0.8, 1.2] against the same times 0.95: the medians' intervals overlap; times 0.5: they cannot
    draw = random.Random(3)
    clock = Clock()

    def noisy(factor):
        return (factor * draw.uniform(0.8, 1.2) * 1e-6 for _ in itertools.count())

    for factor, wins in ((0.95, False), (0.5, True)):
        world = catalog(timed("a.activation", clock, noisy(1.0), band=OPT), timed("b.activation", clock, noisy(factor)))
        assert (only(tuned(world, clock)).choice.winner == "b.activation") is wins


def test_the_rest_is_ranked_by_the_same_rule():
    clock = Clock()
    ranks = {"a": (3, 4e-6), "b": (2, 3.97e-6), "c": (1, 2e-6), "d": (0, 3e-6)}
    kernels = [timed(f"x.activation.{n}", clock, t, rank=r) for n, (r, t) in ranks.items()]
    choice = only(tuned(catalog(*kernels), clock, hopeless=9.0)).choice
    # c beats a; then d beats a; then b is not faster than a by enough
    assert [id[-1] for id in choice.ranking] == ["c", "d", "a", "b"]


# Numerics classes


@pytest.mark.parametrize(
    ("incumbent", "rival", "wins"),
    [
        (Numerics(True), Numerics(True), True),
        (Numerics(True), Numerics(False), False),
        (Numerics(False), Numerics(True), True),
        (Numerics(True, batch_invariant=True), Numerics(True, batch_invariant=False), False),
        (Numerics(True, accumulation="fp32"), Numerics(True, accumulation="fp16"), False),
    ],
)
def test_a_class_of_numerics_is_not_crossed_unasked(incumbent, rival, wins):
    clock = Clock()
    world = catalog(
        timed("a.activation", clock, 9e-6, band=OPT, numerics=incumbent),
        timed("b.activation", clock, 1e-6, numerics=rival),
    )
    chosen = only(tuned(world, clock))
    assert (chosen.choice.winner == "b.activation") is wins
    assert chosen.measurement.results["b.activation"].samples  # its timings are kept all the same
    if not wins:
        assert "another class of numerics" in chosen.choice.notes["b.activation"]


def test_a_policy_that_says_any_numerics_asks_for_it():
    clock = Clock()
    world = catalog(
        timed("a.activation", clock, 9e-6, band=OPT), timed("b.activation", clock, 1e-6, numerics=Numerics(False))
    )
    policy = Policy(defaults=Defaults(numerics=NumericsDemand()))
    assert only(tuned(world, clock, policy)).choice.winner == "b.activation"


# Faults


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nan", "y holds NaN for ordinary inputs"),
        ("wrong", "other numbers than the incumbent's: y"),
        ("raise", "ValueError: no such tile"),
    ],
)
def test_a_faulty_candidate_is_recorded_and_skipped(fault, words):
    clock = Clock()
    world = catalog(
        timed("a.activation", clock, 9e-6, band=OPT),
        timed("b.activation", clock, 5e-6),
        kernel("bad.activation", FAULTS[fault]),
    )
    policy = Policy(defaults=Defaults(ties=("b", "bad")))
    outcome = tuned(world, clock, policy)
    assert words in outcome.failures["bad.activation"]
    assert only(outcome).choice.ranking == ("b.activation", "a.activation")


def test_a_faulty_incumbent_gives_way_to_the_next_one():
    clock = Clock()
    world = catalog(kernel("bad.activation", FAULTS["nan"], band=OPT), timed("a.activation", clock, 1e-6))
    outcome = tuned(world, clock)
    assert only(outcome).choice.ranking == ("a.activation",)
    assert only(outcome).measurement.incumbent == "bad.activation"


def test_a_prepare_that_fails_is_a_fault_of_its_kernel():
    def prepare(*_):
        raise OSError("libfast.so: cannot open shared object file")

    clock = Clock()
    broken = attrs.evolve(kernel("bad.activation", band=OPT), prepare=prepare)
    world = catalog(broken, timed("a.activation", clock, 1e-6), timed("b.activation", clock, 2e-6))
    outcome = tuned(world, clock, Policy(defaults=Defaults(ties=("a", "b"))))
    assert "libfast.so" in outcome.failures["bad.activation"]


def test_a_candidate_that_runs_out_of_memory_is_left_out_and_its_record_says_so():
    def prepare(*_):
        torch.empty(1 << 60, dtype=torch.uint8)

    clock = Clock()
    large = attrs.evolve(kernel("large.activation", band=OPT), prepare=prepare)
    outcome = tuned(catalog(large, timed("a.activation", clock, 1e-6)), clock)
    assert "memory ran out while it was measured" in outcome.failures["large.activation"]
    assert only(outcome).choice.ranking == ("a.activation",)


def test_results_are_compared_where_inputs_are_mutated_too():
    def adds(x, residual, out=None, state=None):
        residual += x
        return torch.nn.functional.rms_norm(residual, residual.shape[-1:], None, 1e-6)

    def forgets(x, residual, out=None, state=None):
        return torch.nn.functional.rms_norm(residual + x, residual.shape[-1:], None, 1e-6)

    from phyai.kernel import Kernel, Prepared
    from phyai.predicates import match
    from phyai.testing.case import Case
    from phyai.tune import Task

    def row(id, run, band):
        return Kernel(
            id=id, op="rms_norm_add", when=match({}), band=band, capture=Capture.SAFE, numerics=Numerics(True),
            prepare=lambda *_: Prepared(run=run),
        )  # fmt: skip

    world = catalog(row("a.rms_norm_add", adds, OPT), row("b.rms_norm_add", forgets, GENERAL))
    dtypes = dict.fromkeys(("x", "residual", "y"), "fp32")
    case = Case({"M": 4, "D": 8}, dtypes, {"eps": 1e-6, "offset": 0})
    outcome = tuned(world, Clock(), tasks=[Task("rms_norm_add", case)])
    assert "other numbers than the incumbent's: residual" in outcome.failures["b.rms_norm_add"]


# Budget, and what is there to choose


def test_what_the_budget_leaves_out_is_said_and_nothing_half_measured_is_kept():
    clock = Clock()
    world = catalog(timed("a.activation", clock, 1e-6, band=OPT), timed("b.activation", clock, 1e-6))
    outcome = tune([task(8), task(99)], world, Policy(), CPU, measurer(world, clock), seconds=-1)
    assert (len(outcome.late), outcome.measured) == (2, ())


def test_one_kernel_leaves_nothing_to_choose():
    outcome = tuned(catalog(kernel("a.activation")), Clock())
    assert list(outcome.skipped.values()) == ["a.activation is the only kernel that may run it"]


def test_a_pin_leaves_nothing_to_choose():
    from phyai.policy import Restriction, Rule
    from phyai.predicates import match

    clock = Clock()
    world = catalog(timed("a.activation", clock, 1e-6, band=OPT), timed("b.activation", clock, 1e-6))
    pin = Rule("pin", match({"op": "activation"}), restriction=Restriction(("b.activation",), pin=True))
    outcome = tuned(world, clock, Policy(rules=(pin,)))
    assert list(outcome.skipped.values()) == ["b.activation is the only kernel that may run it"]


def test_a_tie_that_would_be_an_error_is_settled_by_the_timings():
    clock = Clock()
    world = catalog(timed("a.activation", clock, 2e-6), timed("b.activation", clock, 1e-6))
    assert only(tuned(world, clock)).choice.winner == "b.activation"


def test_progress_is_told():
    clock = Clock()
    world = catalog(timed("a.activation", clock, 1e-6, band=OPT), timed("b.activation", clock, 1e-6))
    told = []
    tune(
        [task(8), task(99)], world, Policy(), CPU, measurer(world, clock), progress=lambda *args: told.append(args[:2])
    )
    assert told == [(0, 2), (1, 2), (2, 2)]


# End to end on a CPU


def test_the_reference_and_torchs_own_calls_are_tuned_end_to_end(tmp_path):
    pytest.importorskip("phyai_backend_reference")
    from phyai.environment import Environment
    from phyai.plugins import discover
    from phyai.tune import InProcess, Store, op_tasks

    world = discover({})
    environment = Environment.detect("cpu", libraries=world.libraries)
    tasks = [t for t in op_tasks("gemm", world) if t.case.dims["M"] * t.case.dims["N"] * t.case.dims["K"] < 1e8][:2]
    store = Store(tmp_path / "cpu.json")
    settings = Settings(rounds=5, trial=3)
    outcome = tune(tasks, world, default_policy(), environment, InProcess(world, environment, settings), store=store)
    assert len(outcome.layer.chosen) == 2
    for chosen in outcome.layer.chosen:
        assert set(chosen.choice.ranking) == {"torch.gemm.bf16", "reference.gemm"}
    again = tune(tasks, world, default_policy(), environment, InProcess(world, environment, settings), store=store)
    assert (len(again.known), again.measured) == (2, ())


def test_a_quantized_product_is_measured_with_a_quantized_weight():
    pytest.importorskip("phyai_backend_reference")
    from phyai.environment import Environment
    from phyai.plugins import discover
    from phyai.quant.scheme import QuantScheme, TensorQuant
    from phyai.testing.case import Case
    from phyai.tune import InProcess, Task

    world = discover({})
    environment = Environment.detect("cpu", libraries=world.libraries)
    scheme = QuantScheme(TensorQuant("fp8_e4m3", "tensor"), TensorQuant("fp8_e4m3", "tensor", dynamic=True))
    case = Case(
        {"M": 4, "N": 32, "K": 64}, {"x": "bf16", "weight": "fp8_e4m3", "y": "bf16"}, scheme=scheme, layout="plain"
    )
    outcome = tune(
        [Task("gemm", case)], world, default_policy(), environment, InProcess(world, environment, Settings(rounds=3))
    )
    (chosen,) = outcome.layer.chosen
    assert set(chosen.choice.ranking) == {"torch.gemm.fp8_tensor", "reference.gemm.quantized_input"}
    assert chosen.measurement.facts["quant.scheme"] == scheme.name


def test_silu_is_silu():  # the world's own kernel is what the others are held to
    x = torch.tensor([0.0, 1.0, -2.0])
    torch.testing.assert_close(silu(x), x / (1 + torch.exp(-x)))
