"""The kernels for Hopper on one: values, memory, capture and replay, and what they promise of launches that overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import torch
from machine import Resources, normal
from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Kernel
from phyai.op import ArgSpec
from phyai.ops import CORE_OPS
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight
from phyai.testing.case import MEMORY, Case
from phyai.testing.kit import examine_call
from phyai.testing.quantized import quantized_weight
from phyai.testing.report import Outcome
from phyai.testing.subject import Subject, about
from phyai_backend_cuda.records import attention, norms, skinny, skinny_fused
from phyai_backend_cuda.skinny.layout import pack

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]

#: The kernels that are launched to overlap their neighbours.
KERNELS = (*attention.KERNELS, *skinny.KERNELS, *skinny_fused.KERNELS, *norms.KERNELS)
BY_ID: Mapping[str, Kernel] = {kernel.id: kernel for kernel in KERNELS}
OPS = {op.name: op for op in CORE_OPS}
GROUPS = TensorQuant("int4", "group", group_size=64, scale_dtype="bf16")
GEMM = ArgSpec("", {"M": 6, "N": 72, "K": 512}, {}, {}, ("bias",))
MLP = ArgSpec("", {"M": 6, "K": 128, "I": 192, "N": 40}, {}, {"activation": "gelu_tanh"})
PAIRS = ArgSpec("", {"M": 6, "N": 4616, "K": 640}, {}, {}, ("bias",))  # 128 rows of W to a block
WHOLE = ArgSpec("", {"M": 50, "N": 136, "K": 1024}, {}, {}, ("bias",))  # K not shared, x as a whole
PAIRS_MLP = ArgSpec("", {"M": 6, "K": 640, "I": 2304, "N": 40}, {}, {"activation": "silu"})
QKV = {
    "T": 9, "K": 512, "pages": 3, "page_size": 8, "max_position": 64, "heads": 3, "kv_heads": 2, "head_dim": 64,
    "rotary_dim": 32, "N": 448,
}  # fmt: skip
HEADS = ArgSpec("", QKV, {}, {"style": "neox"}, ("bias",))
ADDED = ArgSpec("", {"M": 6, "R": 2, "N": 72, "K": 512}, {}, {}, ("bias",))
ADDED_MLP = ArgSpec("", {"M": 6, "R": 1, "K": 128, "I": 192, "N": 40}, {}, {"activation": "gelu_tanh"})
PAGED = {"T": 9, "B": 2, "pages": 4, "page_size": 100, "entries": 3, "heads": 8, "kv_heads": 2}
SHORT = {"B": 3, "Sq": 70, "Sk": 196, "heads": 4, "kv_heads": 2, "head_dim": 72}
SLAB = {**PAGED, "T": 50, "page_size": 200, "entries": 2}
CALLS: list[tuple[str, ArgSpec, TensorQuant | None]] = [
    ("cuda.gemm.skinny_16bit", GEMM, None),
    ("cuda.gemm.skinny_16bit", attrs.evolve(GEMM, dtypes={"x": "fp16"}), None),
    ("cuda.gemm.skinny_16bit", PAIRS, None),
    ("cuda.gemm.skinny_16bit", attrs.evolve(PAIRS, dtypes={"x": "fp16"}), None),
    ("cuda.gemm.skinny_16bit", WHOLE, None),
    ("cuda.gemm.skinny_fp8", GEMM, TensorQuant("fp8_e4m3", "channel")),
    ("cuda.gemm.skinny_fp8", attrs.evolve(GEMM, dtypes={"x": "fp16"}), TensorQuant("fp8_e4m3", "tensor")),
    ("cuda.gemm.skinny_int4", GEMM, GROUPS),
    ("cuda.gemm.skinny_int4", GEMM, attrs.evolve(GROUPS, dtype="uint4", zero_point="int", group_size=32)),
    ("cuda.gemm.skinny_int4", GEMM, TensorQuant("int4", "channel")),
    ("cuda.gated_mlp.skinny_16bit", MLP, None),
    ("cuda.gated_mlp.skinny_16bit", PAIRS_MLP, None),
    ("cuda.gated_mlp.skinny_fp8", MLP, TensorQuant("fp8_e4m3", "channel")),
    ("cuda.gated_mlp.skinny_int4", MLP, GROUPS),
    ("cuda.qkv_rope_kv_write.skinny_16bit", HEADS, None),
    ("cuda.qkv_rope_kv_write.skinny_16bit", attrs.evolve(HEADS, dtypes={"x": "fp16"}), None),
    ("cuda.qkv_rope_kv_write.skinny_fp8", HEADS, TensorQuant("fp8_e4m3", "channel")),
    ("cuda.qkv_rope_kv_write.skinny_int4", attrs.evolve(HEADS, attrs={"style": "interleaved"}), GROUPS),
    ("cuda.gemm_gated_residual.skinny_16bit", ADDED, None),
    ("cuda.gemm_gated_residual.skinny_16bit", attrs.evolve(ADDED, dtypes={"x": "fp16"}), None),
    ("cuda.gemm_gated_residual.skinny_fp8", ADDED, TensorQuant("fp8_e4m3", "channel")),
    ("cuda.gemm_gated_residual.skinny_int4", ADDED, GROUPS),
    ("cuda.gated_mlp_gated_residual.skinny_16bit", ADDED_MLP, None),
    ("cuda.gated_mlp_gated_residual.skinny_fp8", ADDED_MLP, TensorQuant("fp8_e4m3", "channel")),
    ("cuda.gated_mlp_gated_residual.skinny_int4", ADDED_MLP, GROUPS),
    ("cuda.rms_norm.overlap", ArgSpec("", {"M": 6, "D": 1096}, {}, {"offset": 1}, ("weight",)), None),
    ("cuda.rms_norm_add.overlap", ArgSpec("", {"M": 6, "D": 72}), None),
    ("cuda.ada_rms_norm.overlap", ArgSpec("", {"M": 6, "R": 2, "D": 1024}), None),
    ("cuda.attention_paged.split", ArgSpec("", {**PAGED, "head_dim": 256}), None),
    ("cuda.attention_paged.split", ArgSpec("", {**PAGED, "head_dim": 64}, {}, {"causal": True, "window": 30}), None),
    ("cuda.attention_paged.prefill", ArgSpec("", {**SLAB, "head_dim": 256}, {}, {"single_page": True}), None),
    ("cuda.attention_paged.split_batch_invariant", ArgSpec("", {**PAGED, "head_dim": 128}), None),
    ("cuda.attention.short", ArgSpec("", SHORT), None),
    ("cuda.attention.short", ArgSpec("", {**SHORT, "Sq": 130, "Sk": 256, "head_dim": 128}, {"q": "fp16"}), None),
]


@pytest.mark.parametrize("form", MEMORY)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]}-{call[2].dtype if call[2] else call[1].dims}")
def test_every_check_holds_in_every_form_of_memory(
    call: tuple[str, ArgSpec, TensorQuant | None], form: str, catalog: Catalog
) -> None:
    id, spec, quant = call
    op = OPS[BY_ID[id].op]
    case = attrs.evolve(Case.of(op, spec), memory=form).fitted(op)
    if quant is not None:
        case = case.quantized(op, QuantScheme(quant), "skinny")
    environment = Environment.detect("cuda:0", libraries=catalog.libraries)
    report = examine_call(Subject(BY_ID[id], about(BY_ID[id], catalog), environment), case)
    assert not [(check.name, check.reason) for check in report.checks if check.outcome is Outcome.FAILED]
    assert any(check.name == "capture" and check.outcome is Outcome.PASSED for check in report.checks)


def gemm(weight: Any, bias: torch.Tensor | None = None, **facts: Any) -> Any:
    id = "cuda.gemm.skinny_16bit"
    if isinstance(weight, QuantizedWeight):
        id, weight = f"cuda.gemm.skinny_{'fp8' if weight.scheme.weight.bits == 8 else 'int4'}", pack(weight)
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    # no protocol's Resources: an engine lends nested sites on top of these, and neither row here asks for one
    return BY_ID[id].load()(Facts({"dtype.x": "bf16", **facts}), weights, {}, Resources())  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_e4m3_code_becomes_its_value(dtype: torch.dtype) -> None:
    """Row n of the weight is all codes, turned by n; column n of the identity picks one, exactly."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 127) != 127].repeat(2)[:256]  # no NaN
    table = torch.stack([codes.roll(n) for n in range(64)]).view(torch.float8_e4m3fn).cuda()
    scheme = QuantScheme(TensorQuant("fp8_e4m3", "channel"))
    ones = torch.ones(64, 1, device="cuda")
    weight = QuantizedWeight(scheme=scheme, shape=(64, 256), codes=table, scale=ones)
    run = gemm(weight, **{"dtype.x": "fp16" if dtype == torch.float16 else "bf16"}).run
    for first in range(0, 256, 64):
        x = torch.eye(256, device="cuda", dtype=dtype)[first : first + 64]
        assert torch.equal(run(x).float(), table.float().T[first : first + 64])


@pytest.mark.parametrize(("n", "k"), [(1024, 2048), (4616, 1024)])
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 50, 63, 64])
def test_products_of_every_number_of_rows(rows: int, n: int, k: int) -> None:
    weight, x = normal(n, k, seed=1) / 45, normal(rows, k)
    torch.testing.assert_close(gemm(weight).run(x).double(), x.double() @ weight.double().T, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("bits", "n", "k"), [(16, 1024, 64), (16, 4616, 1024), (8, 1024, 64), (4, 1024, 64)])
def test_a_row_is_the_same_whatever_rows_are_beside_it(bits: int, n: int, k: int) -> None:
    """Every number of eights of rows is a kernel of its own; all round alike, a scale and a bias among it."""
    weight: Any = normal(n, k, seed=1)
    if bits != 16:
        quant = TensorQuant("fp8_e4m3" if bits == 8 else "int4", "channel")
        weight = quantized_weight(weight.cpu().float(), QuantScheme(quant)).to("cuda")
    bias, x = normal(n, seed=2), normal(64, k)
    run = gemm(weight, bias=bias).run
    together = run(x)
    for rows in range(1, 64, 7):
        assert torch.equal(run(x[:rows]), together[:rows])


@pytest.mark.parametrize(("bits", "n"), [(16, 256), (16, 8192), (8, 256), (4, 256)])
def test_inputs_are_those_that_the_kernel_in_front_writes(bits: int, n: int) -> None:
    """The one in front is any kernel and takes its time; eagerly, and in a graph."""
    weight: Any = normal(n, 1024, seed=1)
    if bits != 16:
        quant = TensorQuant("fp8_e4m3", "channel") if bits == 8 else GROUPS
        weight = quantized_weight(weight.cpu().float(), QuantScheme(quant)).to("cuda")
    run, x, y = gemm(weight).run, normal(50, 1024), torch.empty(50, n, dtype=torch.bfloat16, device="cuda")
    want = [run(x * factor) for factor in (1, 2)]
    held = torch.zeros_like(x)

    def call(factor: int) -> None:
        torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
        torch.mul(x, factor, out=held)
        run(held, out=y)

    for factor in (1, 2, 1, 2):
        call(factor)
        assert torch.equal(y, want[factor - 1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for factor in (1, 2):
            call(factor)
            want[factor - 1].copy_(y)
    before = [w.clone() for w in want]
    for _ in range(5):
        held.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(before, want, strict=True))


@pytest.mark.parametrize(("n", "k"), [(512, 512), (4616, 640)])
def test_a_chain_of_overlapping_launches_keeps_every_order(n: int, k: int) -> None:
    """Norm, product, norm, …: each reads what the one in front writes, and writes what the one before that read."""
    weights = [normal(n, k, seed=i) / k**0.5 for i in range(8)]
    products = [gemm(w).run for w in weights]
    norm = BY_ID["cuda.rms_norm.overlap"].load()(  # as in gemm()
        Facts({"shape.D": k, "dtype.x": "bf16"}), {"weight": None}, {}, Resources()  # type: ignore[arg-type]
    ).run  # fmt: skip
    a, b = (torch.empty(50, width, dtype=torch.bfloat16, device="cuda") for width in (n, k))
    first = normal(50, n)

    def chain() -> None:
        a.copy_(first)
        for product in products * 8:
            norm(a[:, :k], out=b)
            product(b, out=a)

    want = first
    for weight in weights * 8:
        want = torch.nn.functional.rms_norm(want[:, :k].float(), (k,), eps=1e-6).bfloat16() @ weight.T
    chain()
    eager = a.clone()
    assert float((eager.float() - want.float()).norm() / want.float().norm()) < 5e-2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(10):
        a.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(a, eager)


@pytest.mark.parametrize("bits", [16, 4])
def test_a_call_right_after_refresh_reads_the_new_weights(bits: int) -> None:
    def weight(seed: int) -> Any:
        dense = normal(4096, 1024, seed=seed)
        return dense if bits == 16 else quantized_weight(dense.cpu().float(), QuantScheme(GROUPS)).to("cuda")

    old, new, x = weight(1), weight(2), normal(50, 1024)
    want = gemm(new).run(x)
    prepared = gemm(old)
    prepared.run(x)
    prepared.refresh({"weight": pack(new) if bits == 4 else new})
    assert torch.equal(prepared.run(x), want)
