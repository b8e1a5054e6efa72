"""Binding a call site: what its weights and arguments say, and what the signature refuses."""

from __future__ import annotations

import attrs
import pytest
from fake_calls import CPU, GEMM, GPU, Fake, catalog, dispatcher, gemm_site, kernel, policy, x
from phyai.dispatch import Dispatcher
from phyai.errors import CallError
from phyai.op import Tensor


def test_dimensions_and_dtypes_follow_from_weights():
    site = gemm_site(dispatcher(kernel("a.gemm")), role="expert")
    static = site.static
    assert (static["shape.N"], static["shape.K"], static["dtype.weight"]) == (32, 64, "bf16")
    assert (static["role"], static["layer"], static["mode.capture"]) == ("expert", "layers.0", False)
    assert "shape.M" not in static


def test_a_dtype_may_be_a_library_object():
    class Dtype:
        def __str__(self):
            return "torch.float16"

    site = dispatcher(kernel("a.act")).bind("act", dtypes={"x": Dtype()}, dims={"D": 8})
    assert (site.static["dtype.x"], site.static["dtype.y"]) == ("fp16", "fp16")


def test_attributes_have_the_signatures_defaults():
    assert dispatcher(kernel("a.act")).bind("act", dtypes={"x": "bf16"}).static["attrs.kind"] == "relu"


def test_the_engines_facts_are_on_every_site():
    made = dispatcher(kernel("a.gemm"), env=GPU, facts={"model.family": "pi05", "model.tags": ["a", "b"]})
    static = gemm_site(made).static
    assert (static["model.family"], static["model.tags"]) == ("pi05", frozenset({"a", "b"}))
    assert (static["device.arch"], static["lib.fast"]) == ("sm90", "1.2")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attrs": {"kindd": "relu"}}, "act has no attribute 'kindd'; did you mean `kind`"),
        ({"attrs": {"kind": "cube"}}, "kind='cube'; allowed: relu, square"),
        ({"dims": {"E": 8}}, "act has no dimension 'E'"),
        ({"dims": {"D": 0}}, "D=0; the signature asks for at least 1"),
        ({"dtypes": {"x": "int8"}}, "x has dtype int8; allowed: bf16, fp16, fp32, fp64"),
        ({"dtypes": {}}, "the dtype of x is not given"),
        ({"dtypes": {"z": "bf16"}}, "act has no tensor 'z'"),
        ({"weights": {"w": Fake((3,))}}, "act has no weight 'w'"),
        ({"present": ("y2",)}, "act has no tensor 'y2'"),
        ({"present": ("x",)}, "x is not optional"),
        ({"facts": {"model.famly": "pi05"}}, "did you mean `model.family`"),
    ],
)
def test_binding_checks_the_signature(changes, words):
    with pytest.raises(CallError) as caught:
        dispatcher(kernel("a.act")).bind("act", **{"layer": "l", "dtypes": {"x": "bf16"}, **changes})
    message = str(caught.value)
    assert message.startswith("binding site l:act: ")
    assert words in message
    assert "signature: x[...M D], mask[...M]? -> y[...M D]" in message


def test_weights_must_have_the_signatures_shapes():
    with pytest.raises(CallError, match=r"weight has shape \(32,\); the signature asks for \(N K\)"):
        dispatcher(kernel("a.gemm")).bind("gemm", weights={"weight": Fake((32,))}, dtypes={"x": "bf16"})


def test_dimensions_must_agree_with_the_weights():
    with pytest.raises(CallError, match="K=65 is given, but the weights have K=64"):
        gemm_site(dispatcher(kernel("a.gemm")), dims={"K": 65})


def test_a_quantized_weight_has_its_own_tensors():
    site = dispatcher(kernel("q.gemm", layouts=("packed",))).bind(
        "gemm", weights={"codes": Fake((4, 4), "int32"), "scales": Fake((4,))}, dtypes={"x": "bf16"},
        dims={"N": 32, "K": 64}, facts={"quant.layout": "packed"},
    )  # fmt: skip
    assert site.run(x()) == "q.gemm"


def test_a_quantized_weight_may_look_like_a_plain_one():
    codes, scheme = Fake((32, 64), "int8"), {"quant.layout": "packed"}
    weight = Tensor("weight", ("N", "K"), "weight", ("bf16", "int8"))
    ops = (attrs.evolve(GEMM, tensors=(*GEMM.inputs, weight, *GEMM.outputs)),)
    made = Dispatcher(catalog(kernel("q.gemm", layouts=("packed",)), ops=ops), policy(), CPU)
    more = {"dtypes": {"x": "bf16"}, "facts": scheme}
    same = made.bind("gemm", weights={"weight": codes}, **more)
    half = made.bind("gemm", weights={"weight": Fake((32, 32), "int8")}, dims={"N": 32, "K": 64}, **more)
    assert (same.static["shape.K"], same.static["dtype.weight"]) == (64, "int8")
    assert (half.static["shape.K"], half.static["shape.N"]) == (64, 32)


def test_what_a_packed_weight_does_not_show_must_be_given():
    with pytest.raises(CallError, match="dims must give N"):
        dispatcher(kernel("q.gemm")).bind(
            "gemm", weights={"codes": Fake((4,))}, dtypes={"x": "bf16"}, facts={"quant.layout": "packed"}
        )


@pytest.mark.parametrize(
    ("weights", "words"),
    [({}, "weight weight is missing"), ({"weight": {"codes": 1}}, "weight weight is a dict; without quant")],
)
def test_weights_must_be_there_and_be_tensors(weights, words):
    with pytest.raises(CallError, match=words):
        dispatcher(kernel("a.gemm")).bind("gemm", weights=weights, dtypes={"x": "bf16"})
