"""Do torch GEMM, Humming w4a16 and FlashInfer paged FA2 fit behind one ``prepare`` signature?

Eighteen layers of the π0.5 expert's shapes (M = 50, 1024 wide, 8 query heads and 1 KV head of 256) in one CUDA graph:
captured once, replayed, re-planned for other KV lengths, given new weights in place, and compared after each against
float32 torch. Counts the graph's nodes and writes ``spike.json``.

    python benchmarks/spike/spike.py --out benchmarks/results/spike.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from pathlib import Path
from typing import Any

import torch
from rows import EngineResources, prepare_flashinfer_paged, prepare_humming_w4a16, prepare_torch_gemm

M, D, H, HKV, HD, FF, GROUP, LAYERS = 50, 1024, 8, 1, 256, 4096, 128, 18
PAGE_SIZE, PAGES = 1088, 1  # one page per request, as the models lay it out


def gemm_facts(n: int, k: int) -> dict[str, Any]:
    return {"shape.M": M, "shape.N": n, "shape.K": k, "quant.group_size": GROUP}


def quantized(n: int, k: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Random int4 codes and group scales (codes packed eight to an int32, low nibble first), and what they mean."""
    codes = torch.randint(1, 16, (n, k), device="cuda", dtype=torch.int32)
    scale = (torch.rand(n, k // GROUP, device="cuda") * 0.5 + 0.75).div(k**0.5 * 4.6).bfloat16()
    shifts = torch.arange(8, device="cuda", dtype=torch.int32) * 4
    packed = (codes.view(n, k // 8, 8) << shifts).sum(-1, dtype=torch.int64).to(torch.int32)
    dense = ((codes - 8).float().view(n, -1, GROUP) * scale.float()[..., None]).view(n, k)
    return {"weight": packed, "weight_scale": scale}, dense


def graph_nodes(graph: torch.cuda.CUDAGraph) -> dict[str, int]:
    """Number of nodes by type, from the driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    count = ctypes.c_size_t(0)
    assert driver.cuGraphGetNodes(handle, None, ctypes.byref(count)) == 0
    nodes = (ctypes.c_void_p * count.value)()
    assert driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)) == 0
    names = {0: "kernel", 1: "memcpy", 2: "memset", 4: "graph", 5: "empty"}
    result: dict[str, int] = {}
    for node in nodes:
        kind = ctypes.c_int(-1)
        driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        name = names.get(kind.value, str(kind.value))
        result[name] = result.get(name, 0) + 1
    return result


def norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (D,))


class Layer:
    """x += o(attention(qkv(norm(x)))); x += down(gelu(up(norm(x)))): cuBLAS, FlashInfer, cuBLAS, Humming twice."""

    def __init__(self, resources: EngineResources) -> None:
        self.qkv_w = torch.randn((H + 2 * HKV) * HD, D, device="cuda").mul(D**-0.5).bfloat16()
        self.o_w = torch.randn(D, H * HD, device="cuda").mul((H * HD) ** -0.5).bfloat16()
        (up, self.up_dense), (down, self.down_dense) = quantized(FF, D), quantized(D, FF)
        self.cache = torch.randn(2, PAGES, PAGE_SIZE, HKV, HD, device="cuda").bfloat16()
        attention = {"shape.H": H, "shape.Hkv": HKV, "shape.D": HD, "shape.page_size": PAGE_SIZE, "shape.pages": PAGES}
        self.qkv = prepare_torch_gemm(gemm_facts(2560, D), {"weight": self.qkv_w}, {}, resources)
        self.o = prepare_torch_gemm(gemm_facts(D, 2048), {"weight": self.o_w}, {}, resources)
        self.up = prepare_humming_w4a16(gemm_facts(FF, D), up, {}, resources)
        self.down = prepare_humming_w4a16(gemm_facts(D, FF), down, {}, resources)
        self.attention = prepare_flashinfer_paged(attention, {}, {}, resources)

    def refresh(self) -> None:
        for prepared, shape, name in ((self.qkv, (2560, D), "qkv_w"), (self.o, (D, 2048), "o_w")):
            new = torch.randn(shape, device="cuda").mul(shape[1] ** -0.5).bfloat16()
            prepared.refresh({"weight": new})
            assert torch.equal(getattr(self, name), new), "refresh did not reach the bound tensor"
        for prepared, shape, name in ((self.up, (FF, D), "up_dense"), (self.down, (D, FF), "down_dense")):
            new, dense = quantized(*shape)
            prepared.refresh(new)
            setattr(self, name, dense)

    def __call__(self, x: torch.Tensor, slots: torch.Tensor, state: Any) -> torch.Tensor:
        qkv = self.qkv.run(norm(x))
        q, k, v = qkv.split((H * HD, HKV * HD, HKV * HD), -1)
        for cache, new in zip(self.cache, (k, v), strict=True):
            cache.view(-1, HKV, HD).index_copy_(0, slots, new.reshape(M, HKV, HD))
        o = self.attention.run(q.reshape(M, H, HD), self.cache[0], self.cache[1], state=state)
        x = x + self.o.run(o.view(M, -1))
        return x + self.down.run(torch.nn.functional.gelu(self.up.run(norm(x)), approximate="tanh"))

    def reference(self, x: torch.Tensor, length: int) -> torch.Tensor:
        """Float32, from the dense weights; the last M of ``length`` keys are this step's own."""
        q, k, v = (norm(x) @ self.qkv_w.float().T).split((H * HD, HKV * HD, HKV * HD), -1)
        prefix = self.cache[:, 0, : length - M, 0].float()
        keys, values = torch.cat((prefix[0], k)), torch.cat((prefix[1], v))
        scores = q.view(M, H, HD).transpose(0, 1) @ keys.T * HD**-0.5
        o = (scores.softmax(-1) @ values).transpose(0, 1).reshape(M, -1)
        x = x + o @ self.o_w.float().T
        return x + torch.nn.functional.gelu(norm(x) @ self.up_dense.T, approximate="tanh") @ self.down_dense.T


def metadata(length: int) -> dict[str, torch.Tensor]:
    """On the host: FlashInfer plans there, and copies to its own device buffers."""
    values = {"cu_seqlens_q": [0, M], "kv_indptr": [0, 1], "kv_indices": [0], "last_page_len": [length]}
    return {name: torch.tensor(v, dtype=torch.int32) for name, v in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.manual_seed(0)
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "checks": []}
    resources = EngineResources()
    start = time.perf_counter()
    layers = [Layer(resources) for _ in range(LAYERS)]
    planner = layers[0].attention
    assert planner.plan is not None
    assert len({layer.attention.plan_key for layer in layers}) == 1
    x, slots = torch.empty(M, D, device="cuda", dtype=torch.bfloat16), torch.zeros(M, device="cuda", dtype=torch.int64)

    def chain(state: Any) -> torch.Tensor:
        y = x
        for layer in layers:
            y = layer(y, slots, state)
        return y

    def probe(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
        report.setdefault("ops", {})[name] = ((got.float() - want).norm() / want.norm()).item()

    def set_length(length: int) -> Any:
        x.copy_(torch.randn(M, D, device="cuda"))
        slots.copy_(torch.arange(length - M, length))
        return planner.plan(metadata(length))

    state = set_length(1018)
    first, wide = layers[0], torch.randn(M, FF, device="cuda").bfloat16()
    probe("gemm", first.qkv.run(x), x.float() @ first.qkv_w.float().T)
    probe("humming up", first.up.run(x), x.float() @ first.up_dense.T)
    probe("humming down", first.down.run(wide), wide.float() @ first.down_dense.T)
    q = torch.randn(M, H, HD, device="cuda").bfloat16()
    keys, values = (c[0, :1018, 0].float() for c in first.cache)
    scores = q.float().transpose(0, 1) @ keys.T * HD**-0.5
    got = first.attention.run(q, first.cache[0], first.cache[1], state=state)
    probe("flashinfer", got, (scores.softmax(-1) @ values).transpose(0, 1))
    chain(state)
    torch.cuda.synchronize()
    report["prepare_and_warm_up_s"] = round(time.perf_counter() - start, 2)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = chain(state)
    graph.instantiate()
    report["graph_nodes"] = graph_nodes(graph)

    def check(what: str, length: int) -> None:
        graph.replay()
        want = x.float()
        for layer in layers:
            want = layer.reference(want, length)
        error = ((y.float() - want).norm() / want.norm()).item()
        report["checks"].append({"what": what, "kv_length": length, "relative_error": error, "ok": error < 2e-2})

    check("captured", 1018)
    for length in (650, 1088, 114):
        assert set_length(length) is state, "a re-plan must return the state that the graph has captured"
        check("re-planned before replay", length)
    pointers = [layer.qkv_w.data_ptr() for layer in layers]
    for layer in layers:
        layer.refresh()
    assert pointers == [layer.qkv_w.data_ptr() for layer in layers]
    check("weights refreshed in place", 114)
    set_length(1018)
    check("refreshed and re-planned", 1018)

    times = []
    for _ in range(50):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / LAYERS)
    report["us_per_layer"] = round(sorted(times)[25], 2)
    begin_plan = time.perf_counter()
    for _ in range(10):
        planner.plan(metadata(1018))
    report["plan_us"] = round((time.perf_counter() - begin_plan) * 1e5, 1)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
