"""Timing on a CUDA device: cold caches, graphs and faults, against the memory's own speed."""

from __future__ import annotations

import pytest
from phyai.environment import Environment
from phyai.policy import default_policy

torch = pytest.importorskip("torch", reason="tensors are torch's")
gpu = pytest.mark.gpu
pytestmark = [gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")]


@pytest.fixture
def timer():
    from phyai.tune.cuda_timer import CudaTimer

    return CudaTimer()


def median(sampler, n=15):
    return sorted(sampler() for _ in range(n))[n // 2]


@pytest.mark.parametrize("graph", [True, False])
def test_a_copy_that_exceeds_the_cache_takes_what_the_memory_allows(graph):
    from phyai.tune.cuda_timer import CudaTimer

    timer = CudaTimer(graph=graph)
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    seconds = median(timer.load([lambda: y.copy_(x)]))
    assert 2 * x.numel() / 10e12 < seconds < 2 * x.numel() / 0.2e12  # between 0.2 and 10 TB/s


def test_small_tensors_are_read_from_memory_not_from_the_cache(timer):
    tensors = [torch.ones(1 << 20, device="cuda") for _ in range(timer.sets(4 << 20))]
    cold = median(timer.load([lambda t=t: t.sum() for t in tensors]))
    graph = torch.cuda.CUDAGraph()
    tensors[0].sum()
    with torch.cuda.graph(graph):
        for _ in range(16):
            tensors[0].sum()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    warm = begin.elapsed_time(end) / 1e3 / 16
    assert cold > 0.9 * warm


def test_the_time_of_a_call_does_not_depend_on_how_many_make_a_sample():
    from phyai.tune.cuda_timer import CudaTimer

    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    few, many = (median(CudaTimer(unrolled=n).load([lambda: x @ x])) for n in (4, 32))
    assert few == pytest.approx(many, rel=0.15)


def test_what_cannot_be_captured_is_refused_and_the_device_still_works(timer):
    x = torch.ones(8, device="cuda")
    with pytest.raises(RuntimeError):
        timer.load([lambda: x.sum().item()])
    torch.cuda.synchronize()
    assert median(timer.load([lambda: x.sum()])) > 0


def test_products_are_tuned_in_another_process_under_graph_replay(tmp_path):
    pytest.importorskip("phyai_backend_reference")
    from phyai.plugins import discover
    from phyai.tune import Isolated, Settings, Store, op_tasks, tune

    world = discover({})
    environment = Environment.detect("cuda", libraries=world.libraries)
    tasks = [t for t in op_tasks("gemm", world, capture=True) if t.sites[0].startswith("pi05.expert.")][:3]
    store = Store(tmp_path / "gpu.json")
    with Isolated(world, environment, Settings(rounds=7)) as measurer:
        outcome = tune(tasks, world, default_policy(), environment, measurer, store=store)
    assert len(outcome.layer.chosen) == 3
    for chosen in outcome.layer.chosen:
        assert chosen.measurement.method == "graph"
        assert chosen.measurement.results[chosen.choice.winner].median < 1e-3
