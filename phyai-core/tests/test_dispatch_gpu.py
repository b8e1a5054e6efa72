"""Call sites inside real CUDA graphs: the order is enforced, and a frozen site replays."""

from __future__ import annotations

import pytest
from fake_calls import catalog, kernel, policy
from phyai.dispatch import Dispatcher
from phyai.dispatch.capture import capturing
from phyai.environment import Environment
from phyai.errors import CaptureError
from phyai.kernel import Band, Capture, Prepared

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def matmul(id, **more):
    def prepare(facts, weights, params, resources):
        weight = weights["weight"]
        scratch = resources.workspace("gemm", 4 * 64 * 32)

        def run(x, out=None, state=None):
            assert scratch.is_cuda
            return torch.matmul(x, weight.T, out=out)

        def refresh(new):
            weight.copy_(new["weight"])

        return Prepared(run=run, refresh=refresh)

    return kernel(id, prepare=prepare, **more)


def bound(*kernels):
    dispatcher = Dispatcher(catalog(*kernels), policy(), Environment.detect("cuda", libraries=()))
    weight = torch.randn(32, 64, device="cuda")
    site = dispatcher.bind(
        "gemm", layer="expert.o_proj", weights={"weight": weight}, dtypes={"x": "fp32"}, capture=True
    )
    return dispatcher, site, weight


def captured(function):
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        function()
    return graph


def test_an_undecided_site_refuses_to_be_captured_and_names_itself():
    _, site, _ = bound(matmul("a.gemm"))
    x, y = torch.randn(5, 64, device="cuda"), torch.empty(5, 32, device="cuda")
    said = []

    def body():
        y.zero_()
        assert capturing()
        try:
            site.run(x, out=y)
        except CaptureError as error:
            said.append(str(error))

    captured(body)
    assert "site expert.o_proj:gemm" in said[0]
    assert not capturing()
    assert site.decisions == ()


def test_a_frozen_static_site_replays_with_new_inputs_and_new_weights():
    dispatcher, site, weight = bound(matmul("a.gemm"))
    x, y = torch.randn(5, 64, device="cuda"), torch.empty(5, 32, device="cuda")
    site.run(x, out=y)
    dispatcher.freeze()
    dispatcher.require_frozen()
    graph = captured(lambda: site.run(x, out=y))
    x.copy_(torch.randn(5, 64))
    site.refresh({"weight": torch.randn(32, 64, device="cuda")})
    graph.replay()
    torch.testing.assert_close(y.double(), x.double() @ weight.double().T, rtol=1e-2, atol=1e-2)


def test_a_frozen_dynamic_site_is_captured_in_a_bucket_that_was_warmed_up():
    dispatcher, site, weight = bound(matmul("a.gemm"), matmul("b.gemm", when={"shape.M": ">64"}, band=Band.OPTIMIZED))
    for m in (5, 100):
        site.run(torch.randn(m, 64, device="cuda"))
    dispatcher.freeze()
    x, y = torch.randn(80, 64, device="cuda"), torch.empty(80, 32, device="cuda")
    graph = captured(lambda: site.run(x, out=y))  # M=80 was not met, but is decided
    graph.replay()
    torch.testing.assert_close(y.double(), x.double() @ weight.double().T, rtol=1e-2, atol=1e-2)


def test_a_kernel_that_wants_a_warm_up_is_not_captured_cold():
    dispatcher, site, _ = bound(matmul("a.gemm", capture=Capture.AFTER_WARMUP))
    dispatcher.freeze()
    x, y = torch.randn(5, 64, device="cuda"), torch.empty(5, 32, device="cuda")
    said = []

    def body():
        y.zero_()
        try:
            site.run(x, out=y)
        except CaptureError as error:
            said.append(str(error))

    captured(body)
    assert "one eager call first" in said[0]
    site.run(x, out=y)
    captured(lambda: site.run(x, out=y)).replay()
