"""Calls whose parts do not agree are refused; what they must agree on is PyTorch's rule, or the op's own text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.calls import call_facts
from phyai.errors import CallError
from phyai.ops import CORE_OPS

OPS = {op.name: op for op in CORE_OPS}
QKV_ATTRS = {"heads": 8, "kv_heads": 1, "head_dim": 256}


def called(op, dims, attrs=()):
    return call_facts(OPS[op], dims=dims, dtypes={OPS[op].inputs[0].name: "bf16"}, attrs=dict(attrs))


@pytest.mark.parametrize(
    ("op", "dims", "attrs", "said"),
    [
        ("attention", {"heads": 3, "kv_heads": 2}, {}, "heads=3 is not a multiple of kv_heads=2"),
        ("attention_paged", {"heads": 2, "kv_heads": 4}, {}, "heads=2 is not a multiple of kv_heads=4"),
        ("group_norm", {"C": 6}, {"groups": 4}, "C=6 is not a multiple of groups=4"),
        ("conv1d", {"C": 6, "C_group": 2}, {"groups": 2}, r"C=6 is not C_group \* groups = 2 \* 2"),
        ("conv3d", {"O": 5}, {"groups": 2}, "O=5 is not a multiple of groups=2"),
        (
            "patch_embedding",
            {"patches": 4, "height": 9, "width": 9, "patch": 3},
            {},
            "4 positions for the 9 patches of 3 x 3",
        ),
        ("gated_residual", {"M": 6, "R": 4}, {}, "R=4 rows of the condition do not divide the M=6 rows"),
        ("gemm_gated_residual", {"M": 6, "R": 4}, {}, "R=4 rows of the condition do not divide the M=6 rows"),
        ("gated_mlp_gated_residual", {"M": 6, "R": 4}, {}, "R=4 rows of the condition do not divide the M=6 rows"),
        ("ada_rms_norm", {"M": 2, "R": 4}, {}, "R=4 rows of the condition do not divide the M=2 rows"),
        ("modulation", {"M": 2, "R": 0}, {}, "R=0 rows of the condition do not divide the M=2 rows"),
        ("rope", {"rotary_dim": 3}, {}, "rotary_dim=3 is odd"),
        ("rope", {"rotary_dim": 16, "head_dim": 8}, {}, "rotary_dim=16 is more than head_dim=8"),
        ("rope", {"M": 2, "P": 3}, {}, "P=3 positions for M=2 tokens: give one for each"),
        ("rope", {"M": 2, "P": 2}, {"mrope_sections": "2,1,1"}, "P=2 positions for M=2 tokens: give three for each"),
        ("rope", {}, {"mrope_sections": "foo"}, "mrope_sections=foo is not three whole numbers.* as in 24,20,20"),
        ("rope", {}, {"mrope_sections": "2,2"}, "mrope_sections=2,2 is not three whole numbers"),
        ("rope", {}, {"mrope_sections": "5,-1,0"}, "mrope_sections=5,-1,0 is not three whole numbers"),
        ("rope", {"rotary_dim": 128}, {"mrope_sections": "16,24,25"}, "has 65 frequencies, not the 64 that rotary_dim"),
        ("qkv_rope_kv_write", {"N": 2048}, QKV_ATTRS, r"N=2048 is not \(heads .* = \(8 \+ 2 \* 1\) \* 256"),
        ("qkv_rope_kv_write", {"kv_heads": 2}, QKV_ATTRS, "kv_heads=2 in the tensors, 1 as the attribute"),
        ("qkv_rope_kv_write", {"rotary_dim": 512, "head_dim": 256}, QKV_ATTRS, "rotary_dim=512 is more than"),
    ],
)
def test_a_call_whose_parts_do_not_agree_is_refused(op, dims, attrs, said):
    with pytest.raises(CallError, match=said):
        called(op, dims, attrs)


@pytest.mark.parametrize(
    ("op", "dims", "attrs"),
    [
        ("attention", {"heads": 8, "kv_heads": 1}, {}),
        ("group_norm", {"C": 6}, {"groups": 3}),
        ("conv2d", {"C": 6, "C_group": 3, "O": 4}, {"groups": 2}),
        ("patch_embedding", {"patches": 4, "height": 7, "width": 8, "patch": 3}, {}),
        ("rope", {"M": 2, "P": 6, "rotary_dim": 8, "head_dim": 8}, {"mrope_sections": "2,1,1"}),
        ("rope", {"rotary_dim": 128}, {"mrope_sections": "16, 24, 24"}),  # Qwen2-VL's, of heads of 128
        ("rope", {"M": 0, "P": 0}, {}),
        ("modulation", {"M": 6, "R": 3}, {}),
        ("ada_rms_norm", {"M": 0, "R": 0}, {}),
        ("qkv_rope_kv_write", {"N": 2560, "rotary_dim": 128, "head_dim": 256}, QKV_ATTRS),
    ],
)
def test_one_whose_parts_agree_is_taken(op, dims, attrs):
    assert {f"shape.{name}": size for name, size in dims.items()}.items() <= called(op, dims, attrs).items()


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 4), c_group=st.integers(1, 4), c=st.integers(1, 8), o=st.integers(1, 8)
)  # fmt: skip
def test_convolutions_are_refused_where_pytorch_refuses_them(groups, c_group, c, o):
    torch = pytest.importorskip("torch")
    try:
        torch.nn.functional.conv1d(torch.zeros(1, c, 3), torch.zeros(o, c_group, 1), groups=groups)
        allowed = True
    except RuntimeError:
        allowed = False
    try:
        called("conv1d", {"C": c, "C_group": c_group, "O": o}, {"groups": groups})
        taken = True
    except CallError:
        taken = False
    assert taken == allowed


@pytest.mark.parametrize("op", [op for op in CORE_OPS if op.contradiction], ids=lambda op: op.name)
def test_what_fit_makes_agree_is_taken(op):
    for spec in op.arg_specs:
        for fact in spec.dims:
            for size in (1, 7, 48):
                fitted = op.fit(type(spec)(spec.name, {**spec.dims, fact: size}, spec.dtypes, spec.attrs, spec.present))
                facts = {f"shape.{name}": value for name, value in fitted.dims.items()}
                facts |= {f"attrs.{name}": value for name, value in fitted.attrs.items() if value is not None}
                assert op.contradiction(facts) is None, (spec.name, fact, size)
