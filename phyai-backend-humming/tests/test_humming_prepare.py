"""Preparing and running a row without a GPU: the library generates code, and its launcher is played by torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import attrs
import pytest
import torch
from phyai.dispatch.resources import EngineResources
from phyai.environment import Device
from phyai.errors import CallError, CaptureError
from phyai.kernel import Kernel, Prepared
from phyai.quant.realize import dequantize
from phyai.quant.scheme import MXFP4, NVFP4, QuantScheme, TensorQuant
from phyai.quant.weight import QuantizedWeight
from phyai.testing.quantized import quantized_weight
from phyai_backend_humming.layout import pack, unpack
from phyai_backend_humming.rows import KERNELS

from .humming_calls import facts
from .simulated_humming import simulated

pytest.importorskip("humming", reason="humming-kernels is not installed")

ROWS: Mapping[str, Kernel] = {k.id.removeprefix("humming.gemm."): k for k in KERNELS if k.op == "gemm"}
W4 = QuantScheme(TensorQuant("int4", "group", group_size=32, scale_dtype="bf16"))


class Launcher:
    """``launch_kernel.out``: notes what it is given, and computes with the weight's numbers."""

    def __init__(self, plain: QuantizedWeight) -> None:
        self.weight = dequantize(plain)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, configs: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *rest: Any) -> None:
        x_scale, x_scale_2, _, bias, y = rest[2:7]
        top_k, valid_m, check = rest[-3:]
        assert x.is_contiguous()
        assert y.is_contiguous()
        assert x.data_ptr() % 16 == 0
        assert (top_k, valid_m, x_scale_2) == (1, 0, None)
        product = x.float() @ self.weight.T * (1.0 if x_scale is None else x_scale)
        y.copy_(product if bias is None else product + bias)
        self.calls.append({"kernel": int(configs[0]), "m": x.shape[0], "check": check, "x": x, "x_scale": x_scale})


@attrs.frozen(eq=False)
class Case:
    prepared: Prepared
    launcher: Launcher
    weight: QuantizedWeight


@contextlib.contextmanager
def case(
    row: str, scheme: QuantScheme, n: int = 16, k: int = 64, *, m: int | None = None, bias: torch.Tensor | None = None,
    params: Mapping[str, Any] = {}, weight: QuantizedWeight | None = None,
) -> Iterator[Case]:  # fmt: skip
    from phyai_backend_humming.library import library

    plain = quantized_weight(torch.randn(n, k, generator=torch.Generator().manual_seed(0)), scheme)
    packed = weight or pack(plain)
    launcher = Launcher(plain)
    played = {
        "launcher": lambda: launcher,
        "transform_tensors": lambda _config, tensors: tensors,
        "transform_bias": lambda padded: padded[:n],
    }
    call = facts(scheme, n, k, m=m, bias=bias is not None)
    weights = {"weight": packed} if bias is None else {"weight": packed, "bias": bias}
    stream = mock.Mock(cuda_stream=7)
    with (
        simulated(90),
        mock.patch.multiple(library(), **played),
        mock.patch("torch.cuda.current_stream", return_value=stream),
    ):
        prepared = ROWS[row].load()(call, weights, params, EngineResources(Device("cpu")))
        yield Case(prepared, launcher, packed)


def want(c: Case, x: torch.Tensor) -> torch.Tensor:
    return (x.float() @ c.launcher.weight.T).to(x.dtype)


def test_three_dimensions_gaps_and_odd_addresses() -> None:
    with case("w4a16", W4) as c:
        wide = torch.randn(2, 3, 129, dtype=torch.bfloat16)
        for x in (wide[..., :64].contiguous(), wide[..., :64], wide[..., 1:65], wide[:, :, :64].transpose(0, 1)):
            y = c.prepared.run(x)
            assert y.shape == (*x.shape[:-1], 16)
            torch.testing.assert_close(y, want(c, x))


def test_inputs_on_another_device_are_refused_before_launching() -> None:
    with case("w4a16", W4) as c:
        with pytest.raises(CallError, match=r"on meta; .* on cpu"):
            c.prepared.run(torch.zeros(2, 64, dtype=torch.bfloat16, device="meta"))
        assert c.launcher.calls == []


def test_a_kernel_that_was_never_launched_is_not_captured() -> None:
    with case("w4a16", W4, 2560, 1024, params={"rows": [16, 256]}) as c:
        x = torch.zeros(200, 1024, dtype=torch.bfloat16)
        c.prepared.run(x[:10])
        with mock.patch("phyai_backend_humming.gemm.capturing", return_value=True):
            c.prepared.run(x[:16])
            with pytest.raises(CaptureError, match="200 rows"):
                c.prepared.run(x)
        c.prepared.run(x)
        with mock.patch("phyai_backend_humming.gemm.capturing", return_value=True):
            c.prepared.run(x)
    assert [call["m"] for call in c.launcher.calls] == [10, 16, 200, 200]


def test_no_rows_launch_nothing() -> None:
    with case("w4a16", W4) as c:
        assert c.prepared.run(torch.empty(0, 64, dtype=torch.bfloat16)).shape == (0, 16)
        assert c.prepared.run(torch.empty(2, 0, 64, dtype=torch.bfloat16)).shape == (2, 0, 16)
        assert c.launcher.calls == []


@pytest.mark.parametrize("strided", [False, True])
def test_out_is_filled_and_returned(strided: bool) -> None:
    with case("w4a16", W4) as c:
        x = torch.randn(5, 64, dtype=torch.bfloat16)
        out = torch.full((5, 32), torch.nan, dtype=torch.bfloat16)[:, :16]
        out = out if strided else out.contiguous()
        assert c.prepared.run(x, out=out) is out
        torch.testing.assert_close(out, want(c, x))


def test_a_call_takes_the_kernel_of_the_next_larger_number_of_rows() -> None:
    with case("w4a16", W4, 2560, 1024, params={"rows": [256, 16, 64]}) as c:
        for m in (1, 16, 17, 64, 65, 256, 1000):
            c.prepared.run(torch.zeros(m, 1024, dtype=torch.bfloat16))
    used = [call["kernel"] for call in c.launcher.calls]
    assert used[0] == used[1]
    assert used[2] == used[3]
    assert used[4] == used[5] == used[6]
    assert len(set(used)) == 3


def test_a_site_that_fixes_its_rows_compiles_one_kernel() -> None:
    from humming.kernel.humming import HummingKernel

    init = mock.patch.object(HummingKernel, "init_kernel", autospec=True, side_effect=HummingKernel.init_kernel)
    with init as made, case("w4a16", W4, 2560, 1024, m=50):
        assert made.call_count == 1


def test_the_library_checks_the_first_launch_of_each_kernel_only() -> None:
    with case("w4a16", W4, 2560, 1024, params={"rows": [16, 256]}) as c:
        for m in (1, 2, 100, 3, 200):
            c.prepared.run(torch.zeros(m, 1024, dtype=torch.bfloat16))
    assert [call["check"] for call in c.launcher.calls] == [True, False, True, False, False]


def test_a_bias_is_given_to_the_launcher() -> None:
    bias = torch.arange(16, dtype=torch.bfloat16)
    with case("w4a16", W4, bias=bias) as c:
        x = torch.randn(3, 64, dtype=torch.bfloat16)
        torch.testing.assert_close(c.prepared.run(x), (x.float() @ c.launcher.weight.T + bias).bfloat16())


def test_one_copy_of_the_weight_is_kept_and_shared() -> None:
    with case("w4a16", W4) as first:
        assert "weight" not in first.weight.packed
        with pytest.raises(Exception, match="arranged for one GPU"):
            unpack(first.weight)
        held = first.weight.packed["final.weight"]
        with case("w4a16_batch_invariant", W4, weight=first.weight) as second:
            assert second.weight.packed["final.weight"] is held


def test_refresh_takes_new_numbers_in_place() -> None:
    with case("w4a16", W4) as c:
        held = c.weight.packed["final.weight"]
        address = held.data_ptr()
        other = pack(quantized_weight(torch.randn(16, 64), W4))
        words = other.packed["weight"].clone()
        assert c.prepared.refresh is not None
        c.prepared.refresh({"weight": other})
        assert held.data_ptr() == address
        assert torch.equal(held, words)


@pytest.mark.parametrize("rule", ["amax", "inverse"])
def test_refresh_takes_the_new_scale_of_static_inputs(rule: str) -> None:
    scheme = QuantScheme(
        TensorQuant("fp8_e4m3", "channel", scale_dtype="bf16"), TensorQuant("fp8_e4m3", "tensor", scale_rule=rule)
    )

    def made(scale: float) -> QuantizedWeight:
        plain = quantized_weight(torch.randn(16, 64, generator=torch.Generator().manual_seed(0)), scheme)
        return pack(attrs.evolve(plain, input_scale=torch.tensor(scale)))

    def codes(rows: torch.Tensor, _size: int, _rounding: Any, out: Any, scales: torch.Tensor, static: Any) -> None:
        out.copy_(rows / static)

    quantize = mock.patch("phyai_backend_humming.activation.quantize", codes)
    with quantize, case("fp8_a8", scheme, weight=made(0.5)) as c:
        x = torch.full((2, 64), 3.0, dtype=torch.bfloat16)
        assert c.prepared.refresh is not None
        for scale in (0.5, 0.25):
            c.prepared.refresh({"weight": made(scale)})
            torch.testing.assert_close(c.prepared.run(x), want(c, x))
            assert c.launcher.calls[-1]["x"][0, 0].item() == 3.0 / scale
            assert c.launcher.calls[-1]["x_scale"].item() == scale


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"scale": None}, "has no scale"),
        ({"scale": torch.ones(16, 3, dtype=torch.bfloat16)}, r"\(16, 3\); \(16, 2\) is right"),
        ({"layout": "plain"}, "layout 'humming'"),
    ],
)
def test_a_broken_weight_is_refused_before_the_library_sees_it(broken: dict[str, Any], words: str) -> None:
    packed = attrs.evolve(pack(quantized_weight(torch.randn(16, 64), W4)), **broken)
    with pytest.raises(CallError, match=words), case("w4a16", W4, weight=packed):
        pass


def test_a_missing_zero_point_is_refused() -> None:
    scheme = QuantScheme(attrs.evolve(W4.weight, zero_point="int"))
    packed = attrs.evolve(pack(quantized_weight(torch.randn(16, 64), scheme)), zero_point=None)
    with pytest.raises(CallError, match="has no zero_point"), case("w4a16", scheme, weight=packed):
        pass


@pytest.mark.parametrize("bias", [torch.zeros(15, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.float32)])
def test_a_bias_of_another_size_or_type_is_refused(bias: torch.Tensor) -> None:
    with pytest.raises(CallError, match="bias"), case("w4a16", W4, bias=bias):
        pass


def test_a_wrong_k_is_refused_before_launching() -> None:
    with case("w4a16", W4) as c:
        with pytest.raises(CallError, match="K=64"):
            c.prepared.run(torch.zeros(2, 72, dtype=torch.bfloat16))
        assert c.launcher.calls == []


@pytest.mark.parametrize("rows", [[], [0], [1.5], "50", {"m": 1}])
def test_rows_that_are_no_numbers_are_refused(rows: Any) -> None:
    with pytest.raises(CallError, match="rows="), case("w4a16", W4, params={"rows": rows}):
        pass


def test_zero_points_are_packed_along_outputs_with_the_codes_offset() -> None:
    from phyai_backend_humming.convert import tensors_of

    scheme = QuantScheme(attrs.evolve(W4.weight, zero_point="int"))
    plain = quantized_weight(torch.randn(16, 64), scheme)
    tensors, floats = tensors_of(pack(plain), torch.bfloat16)
    assert not floats
    assert tensors["zero_point"].shape == (2, 2)
    for n in range(16):
        for g in range(2):
            code = (int(tensors["zero_point"][n // 8, g]) >> (4 * (n % 8))) & 15
            assert code == int(plain.zero_point[n, g]) + 8


def test_a_zero_point_beyond_the_codes_becomes_a_float() -> None:
    from phyai_backend_humming.convert import tensors_of

    scheme = QuantScheme(TensorQuant("uint4", "channel", scale_dtype="bf16", zero_point="int"))
    plain = quantized_weight(torch.randn(8, 64), scheme)
    plain.zero_point[3] = 16
    tensors, floats = tensors_of(pack(plain), torch.bfloat16)
    assert floats
    assert torch.equal(tensors["zero_point"], plain.zero_point.bfloat16())


@pytest.mark.parametrize(
    "scheme",
    [
        W4, QuantScheme(MXFP4), QuantScheme(NVFP4),
        QuantScheme(TensorQuant("fp8_e4m3", "block", block_shape=(128, 128))),
        QuantScheme(TensorQuant("int8", "tensor")),
        QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16", zero_point="int")),
    ],
    ids=lambda s: s.name,
)  # fmt: skip
@pytest.mark.parametrize(("n", "k"), [(1152, 4304), (4304, 1152), (32, 1024), (1024, 32)])
def test_tensors_have_the_shapes_and_types_that_the_library_checks(scheme: QuantScheme, n: int, k: int) -> None:
    from humming.transform import check_and_pad_tensors
    from phyai_backend_humming.convert import layer_config, padded_shape, tensors_of

    packed = pack(quantized_weight(torch.randn(n, k), scheme))
    with simulated(90):
        tensors, _ = tensors_of(packed, torch.bfloat16)
        wide = layer_config(scheme, n, k, torch.bfloat16, 0, real=False)
        padded = check_and_pad_tensors(wide, tensors)
        real = layer_config(scheme, n, k, torch.bfloat16, 0)
    full_n, full_k = padded_shape(scheme.weight, n, k)
    assert padded["weight"].shape == (full_n, full_k * scheme.weight.bits // 32)
    assert (real.shape_n - real.pad_shape_n, real.shape_k - real.pad_shape_k) == (n, k)
    assert (real.shape_n, real.shape_k) == (full_n, full_k)


def test_each_stream_has_counters_of_its_own_and_none_are_made_during_a_capture() -> None:
    from phyai_backend_humming.locks import Locks

    capturing = False
    locks = Locks(torch.device("cpu"), capturing=lambda: capturing)
    assert locks.of(1) is locks.of(1)
    assert locks.of(1).data_ptr() != locks.of(2).data_ptr()
    assert not locks.of(2).any()
    capturing = True
    for stream in range(3, 17):
        locks.of(stream)
    with pytest.raises(CaptureError, match="17th stream"):
        locks.of(17)
