"""Composite ops: the facts of parts, the decomposition as a candidate, and rules on parts."""

from __future__ import annotations

import pytest
from fake_calls import ACT, CPU, GEMM, MLP, REPRODUCIBLE, Fake, catalog, kernel, policy, rule
from phyai.composite import part_facts
from phyai.decision import Stage
from phyai.dispatch import Dispatcher
from phyai.errors import AmbiguousKernelError, NoKernelError
from phyai.facts import Facts
from phyai.kernel import Band, Capture, Numerics, Prepared
from phyai.policy import Layer
from phyai.predicates import match
from phyai.resolver import resolve

OPT, REF, SPEC = Band.OPTIMIZED, Band.REFERENCE, Band.SPECIALIZED
CALL = Facts({"op": "mlp", "shape.M": 5, "shape.K": 64, "shape.I": 256, "shape.N": 32, "attrs.kind": "relu",
              "dtype.x": "bf16", "dtype.up": "bf16", "dtype.down": "bf16", "dtype.y": "bf16",
              "role": "expert", "layer": "expert.mlp", "mode.capture": False})  # fmt: skip
PARTS = [kernel("a.gemm", band=OPT), kernel("a.act")]


def decide(kernels, rules=(), call=CALL, **defaults):
    return resolve(call, catalog(*kernels), policy(*rules, **defaults), CPU)


def verdict(decision, id):
    return next(c for c in decision.candidates if c.kernel == id)


# Facts of parts


def test_a_parts_dimensions_follow_from_the_composites():
    up = part_facts(MLP, MLP.parts[0], GEMM, CALL)
    down = part_facts(MLP, MLP.parts[2], GEMM, CALL)
    assert (up["shape.M"], up["shape.K"], up["shape.N"]) == (5, 64, 256)
    assert (down["shape.M"], down["shape.K"], down["shape.N"]) == (5, 256, 32)


def test_a_dimension_by_a_function_and_an_attribute_by_name():
    act = part_facts(MLP, MLP.parts[1], ACT, CALL)
    assert (act["shape.D"], act["attrs.kind"], act["op"]) == (256, "relu", "act")


def test_a_dimension_that_is_not_known_yet_is_left_out():
    static = CALL.replace({"shape.M": None})
    assert "shape.M" not in part_facts(MLP, MLP.parts[0], GEMM, static)


def test_a_part_keeps_role_and_gets_a_layer_of_its_own():
    up = part_facts(MLP, MLP.parts[0], GEMM, CALL)
    assert (up["role"], up["layer"], up["mode.capture"]) == ("expert", "expert.mlp.up", False)


def test_a_parts_quantization_is_its_own():
    call = CALL.replace({"parts.down.quant.layout": "humming", "parts.down.quant.weight": "int4"})
    down = part_facts(MLP, MLP.parts[2], GEMM, call)
    assert (down["quant.layout"], down["quant.weight"]) == ("humming", "int4")
    assert "quant.layout" not in part_facts(MLP, MLP.parts[0], GEMM, call)


# The decomposition as a candidate


def test_without_a_fused_kernel_the_chain_runs():
    d = decide(PARTS)
    assert d.kernel.id == "decomposed.mlp"
    assert {name: part.kernel.id for name, part in d.parts.items()} == {
        "up": "a.gemm",
        "act": "a.act",
        "down": "a.gemm",
    }


def test_its_band_is_the_lowest_among_its_parts():
    assert decide(PARTS).kernel.band is Band.GENERAL
    assert decide([kernel("a.gemm", band=SPEC), kernel("a.act", band=REF)]).kernel.band is REF


def test_its_band_follows_from_those_that_its_parts_have_on_this_call():
    raised = {SPEC: match({"shape.N": CALL["shape.I"]})}  # of the first product alone
    act = kernel("a.act", band=SPEC)
    assert decide([kernel("a.gemm", band=REF, bands=raised), act]).kernel.band is REF
    raised = {SPEC: match({"shape.M": CALL["shape.M"]})}
    assert decide([kernel("a.gemm", band=REF, bands=raised), act]).kernel.band is SPEC


def test_a_fused_kernel_of_its_band_comes_first():
    assert decide([*PARTS, kernel("f.mlp")]).kernel.id == "f.mlp"


def test_a_fused_kernel_of_a_lower_band_comes_after():
    d = decide([*PARTS, kernel("f.mlp", band=REF)])
    assert d.kernel.id == "decomposed.mlp"
    assert d.decided_by == "bands"


def test_it_is_as_reproducible_as_its_least_reproducible_part():
    sloppy = kernel("a.gemm", numerics=Numerics(reproducible=False))
    assert decide([sloppy, kernel("a.act")]).kernel.numerics.reproducible is False


def test_it_wants_a_warm_up_when_a_part_does():
    assert (
        decide([kernel("a.gemm", capture=Capture.AFTER_WARMUP), kernel("a.act")]).kernel.capture is Capture.AFTER_WARMUP
    )


def test_a_part_without_a_kernel_rules_it_out_and_is_named():
    d = decide([kernel("a.gemm"), kernel("f.mlp")])
    lost = verdict(d, "decomposed.mlp")
    assert (d.kernel.id, lost.stage) == ("f.mlp", Stage.PARTS)
    assert "its part act (act) has no kernel" in lost.reason


def test_a_tie_in_a_part_shows_the_line_that_settles_it():
    with pytest.raises(NoKernelError) as caught:
        decide([*PARTS, kernel("b.act")])
    assert not isinstance(caught.value, AmbiguousKernelError)
    assert "prefer: [a.act]" in str(caught.value)


def test_a_packed_part_needs_a_fused_kernel_that_reads_it():
    call = CALL.replace({"parts.down.quant.layout": "packed"})
    kernels = [*PARTS, kernel("p.gemm", layouts=("packed",)), kernel("f.mlp", band=SPEC)]
    d = decide(kernels, call=call)
    assert d.parts["down"].kernel.id == "p.gemm"
    assert verdict(d, "f.mlp").reason == "the weight of part down lies as packed, this kernel reads plain"


# Rules on parts


def test_a_restriction_on_a_part_rules_fusion_out():
    d = decide([*PARTS, kernel("f.mlp", band=SPEC)], [rule("cublas", {"op": "gemm"}, restrict_to=["a.gemm"], line=8)])
    lost = verdict(d, "f.mlp")
    assert (d.kernel.id, lost.stage) == ("decomposed.mlp", Stage.PARTS)
    assert "fusing would bypass rule cublas (policy.yaml:8) on part up (restrict_to: a.gemm)" in lost.reason


def test_a_numerics_rule_on_a_part_rules_fusion_out():
    rules = [rule("exact", {"op": "act"}, numerics=REPRODUCIBLE)]
    d = decide([*PARTS, kernel("f.mlp", band=SPEC)], rules)
    assert d.kernel.id == "decomposed.mlp"
    assert "on part act (its numerics)" in verdict(d, "f.mlp").reason


def test_a_preference_on_a_part_does_not():
    d = decide([*PARTS, kernel("f.mlp", band=SPEC)], [rule("first", {"op": "gemm"}, prefer=("a.gemm",))])
    assert d.kernel.id == "f.mlp"


def test_a_rule_on_the_layer_of_a_part_reaches_it():
    d = decide([*PARTS, kernel("f.mlp", band=SPEC)], [rule("down", {"layer": "*.mlp.down"}, restrict_to=["a.gemm"])])
    assert "on part down" in verdict(d, "f.mlp").reason


@pytest.mark.parametrize(
    ("effect", "priority", "layer", "fused"),
    [
        ({"prefer": ("f.mlp",)}, 5, Layer.USER, True),  # the same priority, and it names the kernel
        ({"prefer": ("f.mlp",)}, 4, Layer.USER, False),  # a lower one
        ({"prefer": ("f.mlp",)}, 0, Layer.OVERRIDE, True),  # a higher layer
        ({"prefer": ("f.mlp.*", "f.mlp")}, 5, Layer.USER, True),
        ({"prefer": ("f.*",)}, 9, Layer.USER, False),  # does not spell out the op
        ({"prefer": ("*.mlp",)}, 9, Layer.USER, False),  # does not spell out the backend
        ({"restrict_to": ["f.mlp"]}, 5, Layer.USER, True),
        ({"pin": "f.mlp"}, 5, Layer.USER, True),
    ],
)
def test_a_rule_on_the_composite_that_names_the_fused_kernel_allows_it(effect, priority, layer, fused):
    rules = [
        rule("part", {"op": "gemm"}, restrict_to=["a.gemm"], priority=5),
        rule("whole", {"op": "mlp"}, priority=priority, layer=layer, **effect),
    ]
    d = decide([*PARTS, kernel("f.mlp", band=SPEC)], rules)
    assert (d.kernel.id == "f.mlp") is fused


def test_a_restriction_that_the_parts_do_not_meet_says_what_they_run_and_how_to_reach_them():
    with pytest.raises(NoKernelError) as caught:
        decide([*PARTS, kernel("b.gemm")], [rule("b-only", {"op": "mlp"}, restrict_to=["b.*"])])
    assert "its parts run a.gemm, a.act; a rule without `op` reaches them too" in str(caught.value)


def test_a_restriction_that_every_part_meets_allows_the_chain():
    d = decide([*PARTS, kernel("b.gemm", band=SPEC)], [rule("a-only", {"role": "expert"}, restrict_to=["a.*"])])
    assert d.kernel.id == "decomposed.mlp"
    assert d.parts["up"].kernel.id == "a.gemm"


def test_a_preference_that_names_every_part_prefers_the_chain():
    kernels = [*PARTS, kernel("f.mlp", band=SPEC)]
    assert decide(kernels, [rule("a-first", {"role": "expert"}, prefer=("a.*",))]).kernel.id == "decomposed.mlp"


# Running it


def bound(kernels, rules=(), **more):
    dispatcher = Dispatcher(catalog(*kernels), policy(*rules), CPU)
    weights = {"up": Fake((256, 64)), "down": Fake((32, 256))}
    return dispatcher, dispatcher.bind("mlp", layer="mlp", weights=weights, dtypes={"x": "bf16"}, **more)


def traced(id, calls, **more):
    def prepare(facts, weights, params, resources):
        def run(x, *rest, out=None, state=None):
            calls.append((id, facts["layer"], tuple(weights)))
            return Fake((x.shape[0], facts.get("shape.N", x.shape[1])))

        return Prepared(run=run, refresh=lambda new: calls.append(("refresh", facts["layer"], tuple(new))))

    return kernel(id, prepare=prepare, **more)


def test_the_chain_runs_its_parts_with_their_weights():
    calls = []
    _, site = bound([traced("a.gemm", calls), traced("a.act", calls)])
    assert site.run(Fake((5, 64))).shape == (5, 32)
    assert calls == [("a.gemm", "mlp.up", ("weight",)), ("a.act", "mlp.act", ()), ("a.gemm", "mlp.down", ("weight",))]


def test_new_weights_reach_the_parts():
    calls = []
    _, site = bound([traced("a.gemm", calls), traced("a.act", calls)])
    site.run(Fake((5, 64)))
    calls.clear()
    site.refresh({"up": Fake((256, 64)), "down": Fake((32, 256))})
    assert calls == [("refresh", "mlp.up", ("weight",)), ("refresh", "mlp.down", ("weight",))]


def test_a_quantized_parts_tensors_reach_it():
    calls = []
    kernels = [traced("a.gemm", calls), traced("q.gemm", calls, layouts=("q",)), traced("a.act", calls)]
    site = Dispatcher(catalog(*kernels), policy(), CPU).bind(
        "mlp",
        weights={"up": Fake((256, 64)), "down": {"codes": Fake((9,)), "scales": Fake((3,))}},
        dtypes={"x": "bf16"},
        dims={"N": 32},
        layer="mlp",
        facts={"parts.down.quant.layout": "q"},
    )
    site.run(Fake((5, 64)))
    assert calls[-1] == ("q.gemm", "mlp.down", ("codes", "scales"))


def test_the_sites_of_parts_are_listed_and_frozen():
    dispatcher, _ = bound([kernel("a.gemm"), traced("a.act", [])])
    dispatcher.freeze()
    assert [s.name for s in dispatcher.sites] == ["mlp:mlp", "mlp:mlp/up:gemm", "mlp:mlp/act:act", "mlp:mlp/down:gemm"]
    assert all(s.frozen for s in dispatcher.sites)


def test_what_tells_calls_of_a_part_apart_tells_those_of_the_composite_apart():
    """A fused kernel wins for few rows only: above, a part resolves to a better band."""
    kernels = [
        kernel("a.gemm"),
        kernel("s.gemm", {"shape.M": ">64"}, band=SPEC),
        kernel("a.act", band=SPEC),
        kernel("f.mlp", band=OPT),
    ]
    _, site = bound(kernels)
    assert [site.decide(M=m).kernel.id for m in (5, 64, 65, 500)] == [
        "f.mlp",
        "f.mlp",
        "decomposed.mlp",
        "decomposed.mlp",
    ]
    assert len(site.decisions) == 2
