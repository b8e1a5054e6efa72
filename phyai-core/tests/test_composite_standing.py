"""A part that stands for its composite: rules that match both, and preferences that a fused kernel passes over."""

from __future__ import annotations

import pytest
from fake_calls import CPU, Fake, catalog, kernel, policy, rule
from phyai.composite import standing
from phyai.decision import Stage
from phyai.dispatch import Dispatcher
from phyai.errors import NoKernelError
from phyai.explain import to_html, to_text
from phyai.facts import Facts
from phyai.kernel import Band
from phyai.op import Op, Part
from phyai.ops import CORE_OPS
from phyai.quant.lowering import holds
from phyai.resolver import resolve

OPS = {op.name: op for op in CORE_OPS}
ADDED = OPS["gemm_gated_residual"]
NAMES = ("gemm", "gated_residual", ADDED.name)
CALL = Facts({
    "op": ADDED.name, "shape.M": 5, "shape.R": 1, "shape.K": 64, "shape.N": 32, "role": "expert",
    "layer": "layers.1.o_proj", **{f"dtype.{tensor.name}": "bf16" for tensor in ADDED.tensors if not tensor.optional},
})  # fmt: skip
FUSED = kernel(f"f.{ADDED.name}", band=Band.SPECIALIZED)
KERNELS = (kernel("a.gemm"), kernel("b.gemm", band=Band.OPTIMIZED), kernel("b.gated_residual"), FUSED)
EVERY = catalog(*KERNELS, ops=tuple(OPS[name] for name in NAMES))


def decide(*rules):
    return resolve(CALL, EVERY, policy(*rules), CPU)


def test_the_part_whose_layer_is_the_wholes_stands_for_it():
    assert list(standing(ADDED, decide().parts)) == ["gemm"]


@pytest.mark.parametrize("conditions", [{"layer": "*.o_proj"}, {"role": "expert", "shape.K": 64}])
def test_a_restriction_of_both_is_the_parts(conditions):
    mine = rule("mine", conditions, restrict_to=["a.gemm"])
    decision = decide(mine)
    assert decision.kernel.id == f"decomposed.{ADDED.name}"
    assert {name: part.kernel.id for name, part in decision.parts.items()} == {
        "gemm": "a.gemm", "gated_residual": "b.gated_residual",
    }  # fmt: skip
    assert next(one for one in decision.rejected if one.kernel == FUSED.id).stage is Stage.PARTS
    assert holds(decision, EVERY, policy(mine))


def test_a_restriction_of_the_whole_alone_is_every_parts():
    with pytest.raises(NoKernelError, match=r"its parts run b\.gemm, b\.gated_residual"):
        decide(rule("mine", {"op": ADDED.name}, restrict_to=["a.gemm"]))


def test_a_preference_of_both_needs_to_name_the_parts_kernel_alone():
    decision = decide(rule("mine", {"role": "expert"}, prefer=("a.*",)))
    assert (decision.kernel.id, decision.decided_by) == (f"decomposed.{ADDED.name}", "user")
    assert decide(rule("mine", {"op": ADDED.name}, prefer=("a.*",))).kernel.id == FUSED.id


@pytest.mark.parametrize("write", [to_text, to_html])
def test_what_is_preferred_for_a_part_is_said_to_be_passed_over(write):
    decision = decide(rule("mine", {"op": "gemm"}, prefer=("a.gemm",)))
    said = " ".join(write(decision).split())
    assert decision.kernel.id == FUSED.id
    assert "assed over: part gemm: a.gemm is preferred by rule mine" in said
    assert f"prefer decomposed.{ADDED.name}, or restrict the part with restrict_to" in said
    assert "assed over" not in write(decide(rule("mine", {"op": "gemm"}, restrict_to=["a.gemm"])))


def test_a_frozen_composite_tells_apart_calls_by_what_its_parts_derive():
    attention = OPS["attention"]
    whole = Op(
        "behind", "attention(q, k, v)", tensors=attention.tensors, dims=attention.dims,
        attributes=attention.attributes,
        parts=(Part("core", "attention", attrs={a.name: a.name for a in attention.attributes}),),
        compose="test_composite_standing:compose",
    )  # fmt: skip
    square = kernel("s.attention", {"attrs.square": True}, band=Band.SPECIALIZED)
    fused = kernel("f.behind", band=Band.OPTIMIZED)
    every = catalog(square, kernel("a.attention"), fused, ops=(attention, whole))
    site = Dispatcher(every, policy(), CPU).bind("behind", layer="layers.1", dtypes={"q": "bf16"})
    q, long = Fake((1, 4, 2, 8)), Fake((1, 6, 2, 8))
    assert [site.run(q, q, q), site.run(q, long, long)] == ["s.attention", "f.behind"]
    site.freeze()
    assert [site.run(q, q, q), site.run(q, long, long)] == ["s.attention", "f.behind"]


def compose(sites, facts):
    return lambda *inputs, out=None, state=None: sites["core"].run(*inputs)
