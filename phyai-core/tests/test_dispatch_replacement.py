"""Replacing the policy of a dispatcher: what is thawed, captured anew, or refused."""

from __future__ import annotations

import attrs
import pytest
from fake_calls import CPU, GEMM, Fake, catalog, dispatcher, gemm_site, plain, policy, rule, x
from phyai.dispatch import Dispatcher
from phyai.errors import FrozenSiteError, NeedsReload, NoKernelError
from phyai.kernel import Band, Prepared
from phyai.op import Tensor

OPT = Band.OPTIMIZED
LARGE = {"shape.M": ">64"}


def pin(id, **more):
    return rule("pin", {"op": "gemm", **more}, pin=id)


def test_only_what_differs_is_thawed_and_recaptured():
    runs = {}
    made = dispatcher(plain("a.gemm", runs, band=OPT), plain("b.gemm", runs))
    one, two = gemm_site(made, "one", capture=True), gemm_site(made, "two", capture=True)
    eager = gemm_site(made, "eager")
    made.freeze()
    change = made.replace_policy(policy(pin("b.gemm", layer=["one", "eager"])))
    assert change.thawed == ("one:gemm", "eager:gemm")
    assert change.recapture == ("one:gemm",)
    assert two.frozen
    assert two.run is runs["a.gemm"]
    assert not made.frozen
    made.freeze()
    assert one.run is eager.run is runs["b.gemm"]


def test_a_policy_that_changes_no_decision_keeps_everything_frozen():
    runs, prepared = {}, []
    made = dispatcher(plain("a.gemm", runs, band=OPT), plain("b.gemm"))
    site = gemm_site(made, capture=True)
    made.freeze()
    change = made.replace_policy(policy(rule("r", {"op": "gemm"}, prefer=("a.gemm",))))
    assert (change.thawed, change.recapture, made.frozen, prepared) == ((), (), True, [])
    assert site.run is runs["a.gemm"]
    assert [ref.id for ref in site.decisions[0].matched] == ["r"]


def test_a_policy_that_tells_calls_apart_thaws():
    made = dispatcher(plain("a.gemm", band=OPT), plain("b.gemm"))
    site = gemm_site(made, capture=True)
    site.run(x(5))
    made.freeze()
    change = made.replace_policy(policy(pin("b.gemm", **LARGE)))
    assert change.recapture == ("layers.0:gemm",)
    assert [site.run(x(5)), site.run(x(100))] == ["a.gemm", "b.gemm"]


def test_other_params_are_another_decision():
    from phyai.kernel import Param

    made = dispatcher(plain("a.gemm", params=(Param("tile", ""),)))
    gemm_site(made, capture=True)
    made.freeze()
    change = made.replace_policy(policy(rule("r", {"op": "gemm"}, params={"tile": 64})))
    assert change.recapture == ("layers.0:gemm",)


def test_a_policy_that_needs_another_layout_is_refused_and_the_old_one_stays():
    made = dispatcher(plain("a.gemm"), plain("h.gemm", layouts=("humming",)))
    site, old = gemm_site(made), made.policy
    made.freeze()
    with pytest.raises(NeedsReload, match=r"another layout at layers\.0:gemm") as caught:
        made.replace_policy(policy(pin("h.gemm")))
    assert caught.value.sites == ("layers.0:gemm",)
    assert made.policy is old
    assert site.frozen
    assert site.run(x()) == "a.gemm"


def test_a_policy_that_leaves_a_call_without_a_kernel_is_refused():
    made = dispatcher(plain("a.gemm"), plain("b.gemm", when={"shape.K": "%128"}))
    site, old = gemm_site(made), made.policy
    made.freeze()
    with pytest.raises(NoKernelError):
        made.replace_policy(policy(pin("b.gemm")))
    assert made.policy is old
    assert site.frozen


def test_another_quantization_section_needs_a_reload():
    quantizable = attrs.evolve(
        GEMM, tensors=(*GEMM.inputs, Tensor("weight", ("N", "K"), "weight", dtypes=("bf16", "int8")), *GEMM.outputs)
    )
    made = Dispatcher(catalog(plain("a.gemm"), ops=(quantizable,)), policy(), CPU)
    gemm_site(made)
    with pytest.raises(NeedsReload, match="quantization section") as caught:
        made.replace_policy(attrs.evolve(policy(), quantization={"default": {"weight": {"dtype": "int8"}}}))
    assert caught.value.sites == ("layers.0:gemm",)


def test_the_parts_of_a_composite_follow_the_new_policy():
    runs = {}
    kernels = [plain("a.gemm", runs, band=OPT), plain("b.gemm", runs), plain("a.act", runs, band=OPT)]
    made = dispatcher(*kernels)
    made.bind("mlp", layer="mlp", weights={"up": Fake((256, 64)), "down": Fake((32, 256))}, dtypes={"x": "bf16"})
    made.freeze()
    change = made.replace_policy(policy(pin("b.gemm", layer="mlp.down")))
    assert change.thawed == ("mlp:mlp/down:gemm",)
    made.freeze()
    assert [s.decisions[0].kernel.id for s in made.sites] == ["decomposed.mlp", "a.gemm", "a.act", "b.gemm"]


def test_a_composite_that_becomes_fused_drops_the_sites_of_its_parts():
    made = dispatcher(plain("a.gemm"), plain("a.act"), plain("f.mlp", band=Band.REFERENCE))
    made.bind("mlp", layer="mlp", weights={"up": Fake((256, 64)), "down": Fake((32, 256))}, dtypes={"x": "bf16"})
    made.freeze()
    assert len(made.sites) == 4
    made.replace_policy(policy(rule("fuse", {"op": "mlp"}, pin="f.mlp")))
    assert [s.name for s in made.sites] == ["mlp:mlp"]
    assert made.sites[0].decide(M=5).kernel.id == "f.mlp"


def scratch_asking(id, nbytes):
    """A kernel that asks for a workspace while it is prepared."""

    def prepare(facts, weights, params, resources):
        resources.workspace("scratch", nbytes)
        return Prepared(run=lambda *args, **kwargs: id)

    return attrs.evolve(plain(id), prepare=prepare)


def test_a_kernel_that_takes_anothers_place_may_ask_for_a_workspace():
    pytest.importorskip("torch", reason="a workspace is a tensor")
    made = dispatcher(plain("a.gemm", band=OPT), scratch_asking("b.gemm", 64))
    site = gemm_site(made)
    made.freeze()
    assert made.replace_policy(policy(pin("b.gemm"))).thawed == ("layers.0:gemm",)
    assert site.run(x(5)) == "b.gemm"


def test_workspaces_stay_as_they_are_where_a_new_policy_changes_nothing():
    pytest.importorskip("torch", reason="a workspace is a tensor")
    made = dispatcher(plain("a.gemm", band=OPT), plain("b.gemm"))
    gemm_site(made)
    made.freeze()
    made.replace_policy(policy(rule("r", {"op": "gemm"}, prefer=("a.gemm",))))
    with pytest.raises(NoKernelError):
        made.replace_policy(policy(pin("no.gemm")))
    with pytest.raises(FrozenSiteError, match="after freezing"):
        made.resources.workspace("scratch", 64)
