"""The ``out`` of a call: what a kernel could not write its results to is refused before it runs."""

from __future__ import annotations

import pytest
from fake_calls import CPU, Fake, Placed, catalog, dispatcher, gemm_site, kernel, policy, x
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.dispatch import Dispatcher
from phyai.errors import CallError
from phyai.kernel import Band, Prepared
from phyai.ops import CORE_OPS

BOUND = {
    "conv1d": {"weights": {"weight": Fake((4, 3, 3))}},
    "qkv_rope_kv_write": {
        "weights": {"weight": Fake((16, 64)), "cos_sin": Fake((9, 4), "torch.float32")},
        "attrs": {"heads": 2, "kv_heads": 1, "head_dim": 4},
    },
}
QKV_INPUTS = (Fake((5, 64)), Fake((5,), "int64"), Fake((2, 4, 1, 4)), Fake((2, 4, 1, 4)), Fake((5,), "int64"))


def core_site(op, **bound):
    """A site of a core op whose kernel returns its ``out``."""

    def prepare(facts, weights, params, resources):
        return Prepared(run=lambda *inputs, out=None, state=None: out)

    made = catalog(kernel(f"a.{op}", prepare=prepare), ops=CORE_OPS)
    return Dispatcher(made, policy(), CPU).bind(op, **{**BOUND.get(op, {}), "dtypes": {"x": "bf16"}, **bound})


def noting(id, ran, **more):
    def prepare(facts, weights, params, resources):
        return Prepared(run=lambda x, out=None, state=None: ran.append(out))

    return kernel(id, prepare=prepare, **more)


WRONG = [
    (Fake((5,)), r"gemm at site .*: out has shape \(5,\) for y, which is \(5, 32\)"),
    (Fake((32, 5)), r"out has shape \(32, 5\) for y, which is \(5, 32\)"),
    (Fake((1, 5, 32)), r"out has shape \(1, 5, 32\) for y, which is \(5, 32\)"),
    (Fake((5, 32), "torch.float32"), "out has dtype fp32 for y, which is bf16"),
    ((Fake((5, 32)),), r"out is a tuple of 1, not one tensor \(y\)"),
    ("y", "out is a str, not one tensor"),
]


@pytest.mark.parametrize(("out", "said"), WRONG)
def test_an_out_that_does_not_fit_is_refused_before_the_kernel_runs(out, said):
    ran = []
    site = gemm_site(dispatcher(noting("a.gemm", ran)))
    with pytest.raises(CallError, match=said) as caught:
        site.run(x(), out=out)
    assert "give an out that fits, or none" in str(caught.value)
    assert ran == []


@pytest.mark.parametrize(("out", "said"), WRONG)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_remembered_call_refuses_it_too(out, said, frozen):
    ran = []
    made = dispatcher(noting("a.gemm", ran), noting("b.gemm", ran, when={"shape.M": "<=64"}, band=Band.OPTIMIZED))
    site = gemm_site(made)
    right = Fake((5, 32))
    for _ in range(2):
        site.run(x(), out=right)
    if frozen:
        made.freeze()
    for _ in range(2):
        site.run(x(), out=right)
        with pytest.raises(CallError, match=said):
            site.run(x(), out=out)
    assert len(ran) == 4
    assert all(out is right for out in ran)


def test_a_frozen_site_tells_apart_outs_of_calls_that_share_a_kernel():
    ran = []
    made = dispatcher(noting("a.gemm", ran), noting("b.gemm", ran, when={"shape.M": "<=64"}, band=Band.OPTIMIZED))
    site = gemm_site(made)
    site.run(Fake((6, 64)))
    made.freeze()
    site.run(Fake((6, 64)), out=Fake((6, 32)))
    site.run(Fake((2, 3, 64)), out=Fake((2, 3, 32)))  # as many rows, lying otherwise
    with pytest.raises(CallError, match=r"out has shape \(6, 32\) for y, which is \(2, 3, 32\)"):
        site.run(Fake((2, 3, 64)), out=Fake((6, 32)))
    assert len(ran) == 3


def test_a_frozen_static_site_is_the_kernel_and_checks_nothing():
    made = dispatcher(kernel("a.gemm"))
    site = gemm_site(made)
    site.run(x())
    made.freeze()
    assert site.run is site.prepared((x(),)).run


def test_an_out_elsewhere_than_the_inputs_is_refused():
    site = gemm_site(dispatcher(kernel("a.gemm")))
    for _ in range(2):
        assert site.run(Placed((5, 64)), out=Placed((5, 32))) == "a.gemm"
    with pytest.raises(CallError, match=r"out lies on cuda:0 for y; the inputs lie on cpu"):
        site.run(Placed((5, 64)), out=Placed((5, 32), device="cuda:0"))


@pytest.mark.parametrize("frozen", [False, True])
def test_an_out_whose_elements_share_memory_is_refused_also_where_its_shape_is_remembered(frozen):
    torch = pytest.importorskip("torch")
    ran = []
    made = dispatcher(noting("a.gemm", ran), noting("b.gemm", ran, when={"shape.M": "<=64"}, band=Band.OPTIMIZED))
    site = gemm_site(made)
    rows, memory = torch.zeros(5, 64, dtype=torch.bfloat16), torch.zeros(999, dtype=torch.bfloat16)
    right = [memory[:160].view(5, 32), memory[:320].view(5, 64)[:, 1:33], memory[:160].view(32, 5).T]
    for out in right:
        site.run(rows, out=out)
    if frozen:
        made.freeze()
    for _ in range(2):
        for strides in [(0, 1), (31, 1), (1, 1), (32, 0)]:
            with pytest.raises(CallError, match=r"out has strides .* for y: its elements share memory"):
                site.run(rows, out=memory.as_strided((5, 32), strides))
        site.run(rows, out=right[1])
    assert len(ran) == len(right) + 2


def test_an_out_without_elements_shares_nothing():
    torch = pytest.importorskip("torch")
    site = gemm_site(dispatcher(kernel("a.gemm")))
    assert site.run(Fake((0, 64)), out=torch.zeros(1, dtype=torch.bfloat16).expand(0, 32)) == "a.gemm"


def test_several_outputs_want_as_many_tensors():
    site = core_site("ada_rms_norm", dtypes={"x": "bf16", "modulation": "bf16"})
    inputs = (Fake((2, 3, 8)), Fake((2, 24)))
    y, gate = Placed((2, 3, 8)), Placed((2, 8))
    for _ in range(2):
        assert site.run(*inputs, out=(y, gate)) == (y, gate)
    for out, said in [
        (y, r"out is a Placed, not a tuple of 2 tensors \(y, gate\)"),
        ((y,), "out is a tuple of 1, not a tuple of 2 tensors"),
        ((y, gate, gate), "out is a tuple of 3"),
        ((y, None), "not a tuple of 2 tensors"),
        ((gate, y), r"out has shape \(2, 8\) for y, which is \(2, 3, 8\)"),
        ((y, Placed((6, 8))), r"out has shape \(6, 8\) for gate, which is \(2, 8\)"),
    ]:
        with pytest.raises(CallError, match=said):
            site.run(*inputs, out=out)


def test_an_op_without_outputs_takes_no_out():
    site = core_site("kv_write", dtypes={"k": "bf16"})
    rows, cache, slots = Fake((3, 1, 4)), Fake((2, 4, 1, 4)), Fake((3,), "int64")
    with pytest.raises(CallError, match="out is a Fake, but kv_write has no outputs"):
        site.run(rows, rows, cache, cache, slots, out=rows)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(3, 12), stride=st.integers(1, 3), padding=st.integers(0, 2), off=st.sampled_from((-1, 0, 1)))
def test_a_convolution_gives_as_many_positions_as_pytorch_says(length, stride, padding, off):
    torch = pytest.importorskip("torch")
    weight, image = torch.zeros(4, 3, 3), torch.zeros(2, 3, length)
    shape = torch.nn.functional.conv1d(image, weight, stride=stride, padding=padding).shape
    site = core_site("conv1d", attrs={"stride": stride, "padding": padding})
    out = Fake((*shape[:2], shape[2] + off))
    if off == 0:
        assert site.run(Fake(tuple(image.shape)), out=out) is out
    else:
        with pytest.raises(CallError, match=rf"for y, which is \(2, 4, {shape[2]}\)"):
            site.run(Fake(tuple(image.shape)), out=out)


@pytest.mark.parametrize(
    ("granularity", "shape"), [("tensor", (1,)), ("token", (2, 5, 1)), ("group", (2, 5, 4))], ids=lambda v: str(v)
)
def test_codes_and_scales_are_as_their_format_and_granularity_say(granularity, shape):
    group_size = 16 if granularity == "group" else None
    attributes = {"format": "fp8_e4m3", "granularity": granularity, "group_size": group_size}
    site = core_site("quantize_activation", attrs=attributes)
    rows, codes = Fake((2, 5, 64)), Fake((2, 5, 64), "torch.float8_e4m3fn")
    right = (codes, Fake(shape, "torch.float32"))
    assert site.run(rows, out=right) is right
    with pytest.raises(CallError, match="out has dtype int8 for codes, which is fp8_e4m3"):
        site.run(rows, out=(Fake((2, 5, 64), "int8"), right[1]))
    with pytest.raises(CallError, match=r"out has shape .* for scales"):
        site.run(rows, out=(codes, Fake((2, 5, 3), "torch.float32")))


def test_heads_that_only_an_attribute_names_are_those_of_the_output():
    site = core_site("qkv_rope_kv_write")
    with pytest.raises(CallError, match="out does not fit: heads=3 in the tensors, 2 as the attribute"):
        site.run(*QKV_INPUTS, out=Fake((5, 3, 4)))
    with pytest.raises(CallError, match=r"out has shape \(4, 2, 4\) for q, which is \(5, heads, 4\)"):
        site.run(*QKV_INPUTS, out=Fake((4, 2, 4)))
    with pytest.raises(CallError, match=r"out has shape \(5, 2\) for q"):
        site.run(*QKV_INPUTS, out=Fake((5, 2)))
    right = Fake((5, 2, 4))
    assert site.run(*QKV_INPUTS, out=right) is right


def test_a_product_through_a_real_kernel_is_not_resized():
    torch = pytest.importorskip("torch")

    def prepare(facts, weights, params, resources):
        return Prepared(run=lambda x, out=None, state=None: torch.matmul(x, weights["weight"].T, out=out))

    made = catalog(kernel("a.gemm", prepare=prepare), ops=CORE_OPS)
    site = Dispatcher(made, policy(), CPU).bind("gemm", weights={"weight": torch.ones(8, 16)}, dtypes={"x": "fp32"})
    wrong = torch.zeros(3)
    with pytest.raises(CallError, match=r"out has shape \(3,\) for y, which is \(3, 8\)"):
        site.run(torch.ones(3, 16), out=wrong)
    assert wrong.shape == (3,)
    right = torch.zeros(3, 8)
    assert site.run(torch.ones(3, 16), out=right) is right
    assert right.eq(16).all()
