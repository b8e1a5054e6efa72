"""Freezing, and the order of tuning, freezing and capturing."""

from __future__ import annotations

import sys

import pytest
from fake_calls import CPU, Fake, catalog, dispatcher, gemm_site, kernel, plain, policy, x
from phyai.dispatch import Dispatcher
from phyai.errors import CallError, CaptureError, FrozenSiteError, NoKernelError
from phyai.facts import FactKind
from phyai.kernel import Band, Capture, Prepared
from phyai.op import Attr, Dim, Op, Tensor

OPT = Band.OPTIMIZED
LARGE = {"shape.M": ">64"}


# Freezing


def test_a_frozen_static_site_is_the_prepared_run_itself():
    runs = {}
    made = dispatcher(plain("a.gemm", runs))
    site = gemm_site(made)
    site.run(x())
    made.freeze()
    assert site.run is runs["a.gemm"]


def test_freezing_decides_a_static_site_that_was_never_called():
    runs = {}
    made = dispatcher(plain("a.gemm", runs))
    site = gemm_site(made)
    made.freeze()
    assert site.run is runs["a.gemm"]


def test_a_frozen_dynamic_site_keeps_choosing():
    made = dispatcher(plain("a.gemm"), plain("b.gemm", when=LARGE, band=OPT))
    site = gemm_site(made)
    site.run(x(5))
    site.run(x(100))
    made.freeze()
    assert [site.run(x(m))[0] for m in (5, 100, 6, 65, 64, 5)] == ["a", "b", "a", "b", "a", "a"]


def test_a_frozen_site_refuses_a_call_that_it_has_not_decided():
    made = dispatcher(plain("a.gemm"), plain("b.gemm", when=LARGE, band=OPT))
    site = gemm_site(made)
    site.run(x(5))
    made.freeze()
    with pytest.raises(FrozenSiteError) as caught:
        site.run(x(100))
    assert "site layers.0:gemm is frozen and has decided no call with shape.M=100" in str(caught.value)
    assert "thaw()" in str(caught.value)


def test_a_frozen_site_still_refuses_other_shapes():
    made = dispatcher(plain("a.gemm"), plain("b.gemm", when=LARGE, band=OPT))
    site = gemm_site(made)
    site.run(x(5))
    made.freeze()
    with pytest.raises(CallError, match="K=63"):
        site.run(Fake((5, 63)))


def test_a_thawed_site_decides_again():
    made = dispatcher(plain("a.gemm"), plain("b.gemm", when=LARGE, band=OPT))
    site = gemm_site(made)
    site.run(x(5))
    made.freeze()
    made.thaw()
    assert site.run(x(100)) == "b.gemm"
    assert made.epoch == 1


def test_a_site_that_specializes_is_dynamic():
    made = dispatcher(plain("a.gemm", specializes_on=("shape.M",)))
    site = gemm_site(made)
    site.run(x(5))
    made.freeze()
    assert site.run(x(5)) == "a.gemm"
    with pytest.raises(FrozenSiteError, match=r"shape\.M=6"):
        site.run(x(6))


def test_freezing_prepares_no_uncalled_kernel_that_reads_a_fact_which_only_calls_have():
    def prepare(facts, weights, params, resources):
        rows = facts["shape.M"]
        return Prepared(run=lambda x, out=None, state=None: rows, refresh=lambda new: None)

    made = dispatcher(kernel("a.gemm", prepare=prepare, specializes_on=("shape.M",)))
    site = gemm_site(made)
    made.freeze()
    assert site.decisions == ()
    with pytest.raises(FrozenSiteError, match=r"shape\.M=3"):
        site.run(x(3))
    made.thaw()
    assert site.run(x(3)) == 3


def test_freezing_is_all_or_nothing():
    made = dispatcher(plain("a.gemm"))
    site = gemm_site(made)
    made.bind("act", layer="broken", dtypes={"x": "bf16"})  # nothing can run it
    with pytest.raises(NoKernelError, match="act at broken"):
        made.freeze()
    assert not made.frozen
    assert not site.frozen


# Capturing


class Capturing:
    """A switch in place of a CUDA stream."""

    def __init__(self):
        self.on = False

    def __call__(self):
        return self.on


def test_an_undecided_site_during_capture_names_itself():
    capture = Capturing()
    site = gemm_site(dispatcher(plain("a.gemm"), is_capturing=capture), "expert.o_proj", capture=True)
    capture.on = True
    with pytest.raises(CaptureError, match=r"site expert\.o_proj:gemm .* not decided yet"):
        site.run(x())


def test_a_decided_site_may_be_captured():
    capture = Capturing()
    made = dispatcher(plain("a.gemm"), plain("b.gemm", when=LARGE, band=OPT), is_capturing=capture)
    site = gemm_site(made, capture=True)
    site.run(x(5))
    made.freeze()
    capture.on = True
    assert site.run(x(6)) == "a.gemm"


def test_a_kernel_that_wants_a_warm_up_gets_it_before_capture():
    capture, runs = Capturing(), {}
    made = dispatcher(plain("a.gemm", runs, capture=Capture.AFTER_WARMUP), is_capturing=capture)
    site = gemm_site(made, capture=True)
    made.freeze()
    capture.on = True
    with pytest.raises(CaptureError, match="one eager call first"):
        site.run(x())
    capture.on = False
    assert site.run(x()) == "a.gemm"
    assert site.run is runs["a.gemm"]


def test_capture_comes_after_freezing():
    made = dispatcher(plain("a.gemm"))
    with pytest.raises(CaptureError, match="after freeze"):
        made.require_frozen()
    made.freeze()
    made.require_frozen()


def test_nothing_captures_where_torch_is_not_loaded(monkeypatch):
    from phyai.dispatch.capture import capturing

    monkeypatch.setitem(sys.modules, "torch", None)
    assert capturing() is False


# Resources


def test_a_workspace_is_shared_and_grows_until_frozen():
    pytest.importorskip("torch")
    made = dispatcher(plain("a.gemm"))
    first = made.resources.workspace("split_k", 100)
    assert made.resources.workspace("split_k", 50) is first
    assert made.resources.workspace("split_k", 200).numel() == 200
    made.freeze()
    assert made.resources.workspace("split_k", 200).numel() == 200
    with pytest.raises(FrozenSiteError, match="'split_k' has 200 bytes and is asked for 201"):
        made.resources.workspace("split_k", 201)


def test_a_shared_object_is_made_once_for_each_engine():
    one, two = dispatcher(plain("a.gemm")), dispatcher(plain("a.gemm"))
    handle = one.resources.shared("handle", object)
    assert one.resources.shared("handle", object) is handle
    assert two.resources.shared("handle", object) is not handle


# New weights


def test_new_weights_of_other_shapes_are_refused():
    site = gemm_site(dispatcher(plain("a.gemm")))
    site.run(x())
    site.refresh({"weight": Fake((32, 64))})
    with pytest.raises(CallError, match=r"refresh needs weight of shape \(32, 64\), given \(32, 65\)"):
        site.refresh({"weight": Fake((32, 65))})
    with pytest.raises(CallError, match="refresh takes weight; given: bias"):
        site.refresh({"bias": Fake((32,))})


def test_a_kernel_that_cannot_take_new_weights_says_so():
    site = gemm_site(dispatcher(kernel("a.gemm")))
    site.run(x())
    with pytest.raises(CallError, match=r"a\.gemm cannot take new weights in place"):
        site.refresh({"weight": Fake((32, 64))})


def test_a_composite_op_is_refused_before_one_of_its_parts_has_taken_new_weights():
    taken = []

    def prepare(facts, weights, params, resources):
        refresh = None if facts["layer"] == "l.down" else taken.append
        return Prepared(run=lambda *inputs, out=None, state=None: inputs[0], refresh=refresh)

    site = dispatcher(kernel("a.gemm", prepare=prepare), kernel("a.act", prepare=prepare)).bind(
        "mlp", layer="l", weights={"up": Fake((8, 8)), "down": Fake((8, 8))}, dtypes={"x": "bf16"}
    )
    site.run(Fake((2, 8)))
    with pytest.raises(CallError, match=r"/down:gemm: a\.gemm cannot take new weights in place"):
        site.refresh({"up": Fake((8, 8)), "down": Fake((8, 8))})
    assert taken == []


# Planning

PAGED = Op(
    "paged",
    "o = attention(q, cache, metadata)",
    tensors=(
        Tensor("q", ("T", "D")),
        Tensor("indptr", ("B+1",), "metadata", dtypes=("int32",)),
        Tensor("o", ("T", "D"), "output"),
    ),
    dims=(Dim("T", "tokens", dynamic=True), Dim("B", "requests", dynamic=True), Dim("D", "width")),
    attributes=(Attr("causal", FactKind.FLAG, False, ""),),
)


def paged(id, **more):
    def prepare(facts, weights, params, resources):
        return Prepared(
            run=lambda q, out=None, state=None: (id, state),
            plan=lambda metadata: ("planned", metadata["indptr"].shape),
            plan_key=(facts["shape.D"],),
        )

    return kernel(id, prepare=prepare, **more)


def paged_site(*kernels, **more):
    made = Dispatcher(catalog(*kernels, ops=(PAGED,)), policy(), CPU)
    return made.bind("paged", layer="l", dtypes={"q": "bf16"}, dims={"D": 8, **more})


def test_a_plan_is_made_once_and_given_to_run():
    site = paged_site(paged("a.paged"))
    state = site.plan({"indptr": Fake((4,), "int32")})
    assert site.run(Fake((10, 8)), state=state) == ("a.paged", ("planned", (4,)))
    assert site.plan_key() == ("a.paged", (8,))


def test_a_plan_must_be_told_what_the_decision_depends_on():
    site = paged_site(paged("a.paged"), paged("b.paged", when={"shape.T": "<=16"}, band=OPT))
    with pytest.raises(CallError, match="depends on T"):
        site.plan({"indptr": Fake((4,), "int32")})
    assert site.plan_key(T=10)[0] == "b.paged"
    assert site.plan_key(T=100)[0] == "a.paged"


def test_metadata_are_checked():
    site = paged_site(paged("a.paged"), B=3)
    with pytest.raises(CallError, match="plan takes indptr; given: kv"):
        site.plan({"kv": Fake((4,))})
    with pytest.raises(CallError, match="B=4, but the site was bound to B=3"):
        site.plan({"indptr": Fake((5,), "int32")})


def test_a_kernel_without_a_plan_plans_nothing():
    assert paged_site(kernel("a.paged")).plan({"indptr": Fake((4,), "int32")}) is None
