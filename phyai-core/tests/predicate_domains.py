"""Small domains of every kind of fact, and random conditions over them, for tests against brute force."""

import itertools

from hypothesis import strategies as st
from phyai.facts import FactKind, FactSpec, Vocabulary

VOCABULARY = Vocabulary(
    (
        FactSpec("op", FactKind.NAME, ""),
        FactSpec("shape.M", FactKind.NUMBER, "", minimum=1),
        FactSpec("attrs.eps", FactKind.NUMBER, "", integer=False),
        FactSpec("role", FactKind.NAME, "", values=("a", "b", "c")),
        FactSpec("layer", FactKind.NAME, ""),
        FactSpec("attrs.gated", FactKind.FLAG, ""),
        FactSpec("model.tags", FactKind.SET, ""),
        FactSpec("lib.x", FactKind.VERSION, ""),
        FactSpec("device.arch", FactKind.ARCH, ""),
        FactSpec("device.vendor", FactKind.NAME, "", values=("nvidia", "amd")),
        FactSpec("device.type", FactKind.NAME, "", values=("cpu", "cuda")),
    )
)
VALUES = {
    "shape.M": ["<=3", ">3", "<7", ">=7", "3..5", "%2", "%3", "%4", 3, [3, 4], "!=6", "<=2.5", 0, None],
    "attrs.eps": ["<=1", ">1", "<1", ">=1", "0.5..1", "%1", "%2", 0.5, [1, 0.5], None],
    "role": ["a", ["a", "b"], "?", None],
    "layer": ["a*", "*b", "a?", "[!b]*", "ab", ["a", "b"], "*a*", None],
    "attrs.gated": [True, False, None],
    "model.tags": ["p", "q", ["p", "q"], None],
    "lib.x": [">=1.2", ">1.2", "<1.2", "<=1.2", "1.2", "1.2.*", "<1.2rc1", ">1.2.post1", "!=1.2", ">=1.2.1", None],
    "device.arch": [">=sm90", "<sm90", "sm90", ">sm89", "<=sm80", ">=gfx942", "!=sm90", None],
    "device.vendor": ["nvidia", "amd", None],
    "device.type": ["cpu", "cuda"],
}
DOMAINS = {
    "shape.M": [*range(1, 25)],
    "attrs.eps": [0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4],
    "role": ["a", "b", "c"],
    "layer": ["".join(c) for n in (1, 2, 3) for c in itertools.product("abz", repeat=n)],
    "attrs.gated": [True, False],
    "model.tags": [frozenset(c) for n in range(3) for c in itertools.combinations("pq", n)],
    "lib.x": ["1.1", "1.2.dev0", "1.2a1", "1.2rc1", "1.2rc1.post1", "1.2", "1.2.post0", "1.2.post1", "1.2.post2",
              "1.2.0.0.1", "1.2.1.dev1", "1.2.1", "1.3.dev0", "1.3"],
    "device.arch": ["sm80", "sm89", "sm90", "sm100", "gfx90a", "gfx942"],
    "device.vendor": ["nvidia", "amd"],
    "device.type": ["cpu", "cuda"],
}  # fmt: skip

literals = st.sampled_from([(fact, value) for fact, values in VALUES.items() for value in values])


def narrowed(facts):
    return st.sampled_from([(fact, value) for fact in facts for value in VALUES[fact]])


@st.composite
def mappings(draw, literal=literals, depth=2):
    out = {"all_of": [dict([draw(literal)]) for _ in range(draw(st.integers(1, 3)))]}
    if depth:
        for key in ("any_of", "none_of"):
            if draw(st.booleans()):
                out[key] = draw(st.lists(mappings(literal, depth - 1), min_size=1, max_size=2))
        if draw(st.integers(0, 5)) == 0:
            out["when"] = {"if": draw(mappings(literal, 0)), "then": draw(mappings(literal, 0))}
    return out


def calls(names):
    for values in itertools.product(*([None, *DOMAINS[name]] for name in names)):
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}
