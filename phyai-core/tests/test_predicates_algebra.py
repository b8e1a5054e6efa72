"""Laws: negation, printing, partial evaluation, memo cells, globs; each against evaluation on all small calls."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.predicates import FALSE, TRUE, MemoKey, Partition, all_of, any_of, match, none_of
from phyai.predicates._globs import compile_glob
from phyai.predicates._names import find_name
from predicate_domains import DOMAINS, VALUES, VOCABULARY, calls, mappings

predicates = mappings().map(lambda m: match(m, VOCABULARY))


def some_calls(p, limit=300):
    """Calls over the facts that `p` reads: all when they are few, else a fixed sample."""
    names = sorted(p.facts)
    size = 1
    for name in names:
        size *= len(DOMAINS[name]) + 1
    if size <= limit:
        return list(calls(names))
    rng = random.Random(size)
    picks = [{n: rng.choice([None, *DOMAINS[n]]) for n in names} for _ in range(limit)]
    return [{n: v for n, v in call.items() if v is not None} for call in picks]


def negation_by_hand(p, call):
    """Negation as the design states it: a test of an absent fact is false in either polarity."""
    name = type(p).__name__
    if name == "AllOf":
        return any(negation_by_hand(part, call) for part in p.parts)
    if name == "AnyOf":
        return all(negation_by_hand(part, call) for part in p.parts)
    if name == "Present":
        return not p.holds(call)
    return p.fact in call and not p.holds(call)


@settings(max_examples=75, deadline=None)
@given(predicates)
def test_negation(p):
    negated = p.negate()
    for call in some_calls(p):
        assert negated.holds(call) is negation_by_hand(p, call)
    assert negated.negate() == p
    assert none_of(p) == negated


@settings(max_examples=100, deadline=None)
@given(predicates)
def test_printing_and_reading_back(p):
    assert match(p.to_yaml(), VOCABULARY) == p
    assert hash(match(p.to_yaml(), VOCABULARY)) == hash(p)


@settings(max_examples=75, deadline=None)
@given(predicates, predicates)
def test_combination(p, q):
    both, either = all_of(p, q), any_of(p, q)
    assert both == all_of(q, p)
    assert either == any_of(q, p)
    for call in some_calls(both, 60):
        assert both.holds(call) is (p.holds(call) and q.holds(call))
        assert either.holds(call) is (p.holds(call) or q.holds(call))


@settings(max_examples=75, deadline=None)
@given(predicates)
def test_words_exactly_where_it_fails(p):
    for call in some_calls(p, 60):
        assert (p.why_not(call) is None) is p.holds(call)


@settings(max_examples=75, deadline=None)
@given(predicates, st.data())
def test_what_is_left_when_some_facts_are_known(p, data):
    names = sorted(p.facts)
    known = set(data.draw(st.lists(st.sampled_from(names), unique=True)) if names else [])
    for call in some_calls(p, 60):
        static = {n: v for n, v in call.items() if n in known}
        rest = p.given(static, absent=known)
        assert not rest.facts & known
        assert rest.holds({n: v for n, v in call.items() if n not in known}) is p.holds(call)
        assert p.given(call, absent=p.facts) is (TRUE if p.holds(call) else FALSE)


@settings(max_examples=75, deadline=None)
@given(st.lists(predicates, min_size=1, max_size=3))
def test_calls_with_one_memo_key_cannot_be_told_apart(ps):
    together = all_of(*(any_of(p, match({"op": "x"})) for p in ps))  # only to sample calls over all their facts
    key = MemoKey.of(ps, dynamic=together.facts)
    seen = {}
    for call in some_calls(all_of(*ps)):
        outcome = tuple(literal.holds(call) for p in ps for literal in p.literals())
        assert seen.setdefault(key(call), outcome) == outcome


NUMBERS = st.lists(
    st.sampled_from(["<=3", "<3", ">7", ">=7.5", "<=7.5", 5, [2, 9], "%2", "%3", "%4", "!=6"]), min_size=1, max_size=4
)


@settings(max_examples=100, deadline=None)
@given(NUMBERS)
def test_partition(values):
    p = all_of(*(any_of(match({"shape.M": v}), match({"op": "x"})) for v in values))
    atoms = [a for a in p.atoms() if a.fact == "shape.M"]
    partition = Partition.of("shape.M", atoms)
    quick = partition.function()
    outcome = {}
    for value in range(1, 60):
        truth = [a.accepts(value) for a in atoms]
        assert outcome.setdefault(partition.cell(value), truth) == truth
        assert quick(value) == partition.cell(value)
    first = {}
    for value in range(1, 60):
        first.setdefault(partition.cell(value), value)
    assert partition.samples(1, 59) == tuple(sorted(first.values()))


def test_a_partition_without_thresholds_has_one_cell():
    p = Partition.of("shape.M", match({"shape.K": "<=3"}).atoms())
    assert {p.cell(v) for v in range(100)} == {0}


PATTERNS = st.text(alphabet="ab*?", min_size=1, max_size=4) | st.sampled_from(["[ab]*", "[!a]", "a[!b]*", "*[a-b]"])
SHORT = ["".join(c) for n in range(1, 6) for c in itertools.product("abz", repeat=n)]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(PATTERNS, max_size=3), st.lists(PATTERNS, max_size=2), st.lists(st.sampled_from(SHORT[:12]), max_size=2)
)
def test_a_shortest_name_between_globs(required, forbidden, excluded):
    def fits(name):
        return (
            all(compile_glob(p)(name) for p in required)
            and not any(compile_glob(p)(name) for p in forbidden)
            and name not in excluded
        )

    found = find_name(required, forbidden, excluded)
    shortest = next((name for name in SHORT if fits(name)), None)
    if found is None:
        assert shortest is None
    else:
        assert fits(found)
        assert shortest is None or len(found) <= len(shortest)


@settings(max_examples=100, deadline=None)
@given(PATTERNS, st.sampled_from(SHORT))
def test_globs_match_as_fnmatch_does(pattern, name):
    from fnmatch import fnmatchcase

    assert bool(compile_glob(pattern)(name)) is fnmatchcase(name, pattern)


def test_every_literal_form_is_exercised():
    seen = {type(a).__name__ for fact, vs in VALUES.items() for v in vs for a in match({fact: v}, VOCABULARY).atoms()}
    assert seen == {"Present", "OneOf", "Compare", "MultipleOf", "Glob", "Contains"}
