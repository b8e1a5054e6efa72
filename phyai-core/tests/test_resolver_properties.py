"""What holds of every decision, on random kernels, rules and calls."""

from __future__ import annotations

import json

import attrs
from fake_calls import GPU, REPRODUCIBLE, catalog, facts, kernel, policy, rule, within
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.decision import Decision
from phyai.errors import AmbiguousKernelError, NoKernelError
from phyai.kernel import Band, Capture, Numerics
from phyai.policy import Layer
from phyai.resolver import resolve

IDS = ["a.gemm.0", "a.gemm.1", "b.gemm", "c.gemm", "r.gemm"]
PATTERNS = st.sampled_from([*IDS, "a.*", "*.gemm", "absent.gemm"])
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "shape.M": st.sampled_from(["<=4", ">4", "%2", 5]),
        "shape.K": st.sampled_from(["%64", "%128"]),
        "device.arch": st.sampled_from([">=sm90", "sm80"]),
        "lib.fast": st.sampled_from([">=1", ">=2"]),
    },
)
BANDS = st.dictionaries(st.sampled_from(list(Band)), CONDITIONS, max_size=2)
EFFECTS = st.one_of(
    st.builds(lambda p: {"prefer": tuple(p)}, st.lists(PATTERNS, min_size=1, max_size=2)),
    st.builds(lambda p: {"restrict_to": p}, st.lists(PATTERNS, min_size=1, max_size=2)),
    st.builds(lambda p, f: {"restrict_to": [p], "fallback": (f,)}, PATTERNS, PATTERNS),
    st.builds(lambda p: {"pin": p}, st.sampled_from(IDS)),
    st.just({"numerics": REPRODUCIBLE}),
)


@st.composite
def questions(draw, most_rules=4):
    kernels = [
        kernel(
            id,
            when := draw(CONDITIONS),
            band=draw(st.sampled_from(list(Band))),
            bands=within(when, draw(BANDS)),
            rank=draw(st.integers(0, 1)),
            capture=draw(st.sampled_from(list(Capture))),
            numerics=Numerics(draw(st.booleans())),
            layouts=draw(st.sampled_from([("plain",), ("packed",), ("plain", "packed")])),
        )
        for id in IDS
    ]
    rules = [
        rule(
            f"r{n}", {"op": "gemm", **draw(CONDITIONS)}, line=n, priority=draw(st.integers(0, 1)),
            layer=draw(st.sampled_from([Layer.SHIPPED, Layer.USER, Layer.OVERRIDE])), **draw(EFFECTS),
        )
        for n in range(draw(st.integers(0, most_rules)))
    ]  # fmt: skip
    fallback = draw(st.sampled_from(["error", "warn", "reference"]))
    ties = draw(st.sampled_from([(), ("a", "b", "c", "r")])) if most_rules else ()
    layout = draw(st.sampled_from(["plain", "packed"]))
    call = facts(draw(st.integers(0, 8)), mode__capture=draw(st.booleans()), quant__layout=layout)
    failed = draw(st.dictionaries(st.sampled_from(IDS), st.just("ImportError: gone"), max_size=2))
    return call, catalog(*kernels), policy(*rules, fallback=fallback, ties=ties), failed


def answer(question) -> Decision:
    call, world, rules, failed = question
    try:
        return resolve(call, world, rules, GPU, failed=failed)
    except NoKernelError as error:
        return error.decision


@settings(max_examples=80, deadline=None)
@given(questions())
def test_every_kernel_has_exactly_one_verdict_with_a_reason(question):
    d = answer(question)
    assert sorted(c.kernel for c in d.candidates) == IDS
    assert [c.position for c in d.accepted] == list(range(len(d.accepted)))
    assert all((c.why if c in d.accepted else c.reason).strip() for c in d.candidates)
    assert "unknown" not in json.dumps(d.to_json())


@settings(max_examples=80, deadline=None)
@given(questions())
def test_the_chosen_kernel_may_run_and_is_allowed(question):
    call, _, rules, failed = question
    d = answer(question)
    if d.kernel is None:
        return
    k = d.kernel
    assert k.id == d.accepted[0].kernel
    assert k.when.holds(d.facts)
    assert call["quant.layout"] in k.layouts
    assert not (call["mode.capture"] and k.capture is Capture.NEVER)
    assert k.id not in failed
    aspects = rules.aspects(d.facts)
    assert aspects.numerics is None or k.numerics.reproducible
    if aspects.restriction is not None and not aspects.restriction.restriction.allows(k.id):
        assert not aspects.restriction.restriction.pin
        assert any("leaves nothing usable" in w for w in d.warnings)


@settings(max_examples=50, deadline=None)
@given(questions())
def test_deciding_is_pure(question):
    """Twice the same; and the order in which kernels and rules were declared does not matter."""
    call, world, rules, failed = question
    first = answer(question)
    assert answer(question) == first
    assert answer(question).candidates == first.candidates
    turned = catalog(*reversed([k for k in world.kernels if k.op == "gemm"]))
    again = answer((call, turned, rules, failed))
    assert (again.kernel, again.candidates) == (first.kernel, first.candidates)


@settings(max_examples=100, deadline=None)
@given(questions(most_rules=0))
def test_backends_are_never_ordered_by_name(question):
    """Renaming the backends renames the answer: no tie is settled by the alphabet."""
    call, world, rules, _ = question
    swapped = {"a": "z", "b": "y", "c": "x", "r": "w"}

    def renamed(id):
        backend, _, rest = id.partition(".")
        return f"{swapped[backend]}.{rest}"

    kernels = [k for k in world.kernels if k.op == "gemm"]
    other = catalog(*(attrs.evolve(k, id=renamed(k.id)) for k in kernels))
    outcomes = []
    for known in (world, other):
        try:
            outcomes.append(resolve(call, known, rules, GPU).kernel.id)
        except AmbiguousKernelError:
            outcomes.append("tie")
        except NoKernelError:
            outcomes.append("none")
    assert outcomes[1] == (renamed(outcomes[0]) if "." in outcomes[0] else outcomes[0])
