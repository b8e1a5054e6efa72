"""The memo key against deciding every call anew, on random kernels, rules and calls."""

from __future__ import annotations

from fake_calls import CPU, Fake, catalog, gemm_site, kernel, policy, rule, within, x
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.dispatch import Dispatcher
from phyai.errors import FrozenSiteError, NoKernelError
from phyai.kernel import Band, Prepared
from phyai.predicates import match
from phyai.resolver import resolve

NUMBERS = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["<", "<=", ">", ">="]), st.integers(0, 40)),
    st.builds("%{}".format, st.sampled_from([2, 3, 8])),
    st.builds("{0[0]}..{0[1]}".format, st.tuples(st.integers(0, 20), st.integers(20, 40))),
    st.integers(0, 40),
)
CONDITIONS = st.one_of(
    st.fixed_dictionaries({}, optional={"shape.M": NUMBERS, "role": st.sampled_from(["expert", "vision"])}),
    st.builds(lambda a, b: {"any_of": [{"shape.M": a}, {"shape.M": b}]}, NUMBERS, NUMBERS),
    st.builds(lambda a: {"none_of": [{"shape.M": a}]}, NUMBERS),
)
IDS = ["a.gemm.0", "a.gemm.1", "b.gemm", "c.gemm"]


@st.composite
def worlds(draw):
    """Kernels and rules; every kernel's ``run`` answers with its id and what it was specialized on."""

    def prepare(id):
        def make(facts, weights, params, resources):
            seen = facts["shape.M"] if "M" in specialized[id] else None
            return Prepared(run=lambda x, out=None, state=None: (id, seen))

        return make

    specialized = {id: draw(st.sampled_from(["", "M"])) for id in IDS}
    kernels = [
        kernel(
            id,
            when := {"op": "gemm", **draw(CONDITIONS)},
            band=draw(st.sampled_from([Band.GENERAL, Band.OPTIMIZED])),
            bands=within(when, {Band.SPECIALIZED: draw(CONDITIONS)} if draw(st.booleans()) else {}),
            rank=n,
            prepare=prepare(id),
            specializes_on=("shape.M",) if specialized[id] else (),
        )
        for n, id in enumerate(IDS)
    ]
    effects = st.one_of(
        st.builds(lambda p: {"prefer": (p,)}, st.sampled_from([*IDS, "a.*"])),
        st.builds(lambda p: {"restrict_to": [p, "c.gemm"]}, st.sampled_from([*IDS, "a.*"])),
    )
    rules = [
        rule(f"r{n}", {"op": "gemm", **draw(CONDITIONS)}, priority=draw(st.integers(0, 2)), **draw(effects))
        for n in range(draw(st.integers(0, 3)))
    ]
    return catalog(*kernels), policy(*rules, ties=("a", "b", "c")), specialized


@settings(max_examples=150, deadline=None)
@given(worlds(), st.lists(st.integers(0, 45), min_size=1, max_size=12), st.lists(st.integers(0, 45), max_size=8))
def test_a_site_answers_as_if_it_decided_every_call_anew(world, warm, later):
    """Open, and then frozen: a frozen site gives the right kernel or refuses, never another one."""
    known, rules, specialized = world
    dispatcher = Dispatcher(known, rules, CPU)
    site = gemm_site(dispatcher, role="expert")

    def anew(m):
        try:
            chosen = resolve(site.static.replace({"shape.M": m}), known, rules, CPU).kernel.id
        except NoKernelError:
            return NoKernelError
        return chosen, m if specialized[chosen] else None

    def asked(m):
        try:
            return site.run(x(m))
        except (NoKernelError, FrozenSiteError) as error:
            return type(error)

    for m in warm:
        assert asked(m) == anew(m)
    try:
        dispatcher.freeze()
    except NoKernelError:
        assert anew(0) is NoKernelError  # a static site that nothing can run
        return
    for m in warm:
        assert asked(m) in (anew(m), FrozenSiteError)
        assert asked(m) == anew(m) or anew(m) is NoKernelError
    for m in later:
        assert asked(m) in (anew(m), FrozenSiteError)


@settings(max_examples=100, deadline=None)
@given(worlds(), st.lists(st.integers(0, 45), min_size=2, max_size=20, unique=True))
def test_calls_share_an_entry_unless_something_can_tell_them_apart(world, calls):
    """One entry for each combination of the literals' truth, and of what the winner specializes on."""
    known, rules, specialized = world
    site = gemm_site(Dispatcher(known, rules, CPU), role="expert")
    predicates = [c for k in known.kernels_of("gemm") for c in k.conditions] + [r.match for r in rules.rules]
    literals = [literal for p in predicates for literal in p.atoms()]
    apart = set()
    for m in calls:
        try:
            winner = site.run(x(m))[0]
        except NoKernelError:
            continue
        call = site.static.replace({"shape.M": m})
        apart.add((tuple(a.holds(call) for a in literals), m if specialized[winner] else None))
    assert len(site.decisions) <= len(apart)


def test_a_value_that_is_only_compared_for_equality_splits_nothing_else():
    site = gemm_site(
        Dispatcher(catalog(kernel("a.gemm"), kernel("b.gemm", {"shape.M": 5}, band=Band.OPTIMIZED)), policy(), CPU)
    )
    assert [site.decide(M=m).kernel.id for m in (4, 5, 7)] == ["a.gemm", "b.gemm", "a.gemm"]
    assert len(site.decisions) == 2


def test_calls_that_a_band_tells_apart_are_decided_apart():
    raised = kernel("a.gemm", bands={Band.OPTIMIZED: match({"shape.M": "<=8"})})
    site = gemm_site(Dispatcher(catalog(raised, kernel("b.gemm")), policy(ties=("b", "a")), CPU))
    assert [site.run(x(m)) for m in (9, 8, 9, 7)] == ["b.gemm", "a.gemm", "b.gemm", "a.gemm"]
    assert len(site.decisions) == 2
    site._dispatcher.freeze()
    assert [site.run(x(m)) for m in (100, 1)] == ["b.gemm", "a.gemm"]


@settings(max_examples=80, deadline=None)
@given(worlds(), worlds(), st.lists(st.integers(0, 45), min_size=1, max_size=8))
def test_after_replacing_the_policy_calls_are_answered_under_the_new_one(world, other, calls):
    known, rules, specialized = world
    _, new_rules, _ = other
    dispatcher = Dispatcher(known, rules, CPU)
    site = gemm_site(dispatcher, role="expert")
    for m in calls:
        try:
            site.run(x(m))
        except NoKernelError:
            continue
    try:
        dispatcher.replace_policy(new_rules)
    except NoKernelError:
        assert dispatcher.policy is rules
        return
    for m in calls:
        try:
            want = resolve(site.static.replace({"shape.M": m}), known, new_rules, CPU).kernel.id
        except NoKernelError:
            continue
        assert site.run(Fake((m, 64))) == (want, m if specialized[want] else None)
