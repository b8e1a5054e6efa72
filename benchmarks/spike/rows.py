"""Three kernels of three libraries behind the one ``prepare(facts, weights, params, resources) -> Prepared``.

They are the hard cases for the signature: a library call (torch GEMM), a JIT-compiled GEMM over a packed layout
(Humming w4a16), and attention that is planned on the host once per step and run once per layer (FlashInfer).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from phyai.kernel import Prepared


class EngineResources:
    """What an engine lends: workspaces by name, objects by key. One instance per engine."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device
        self._workspaces: dict[str, torch.Tensor] = {}
        self._objects: dict[object, Any] = {}

    def workspace(self, key: str, nbytes: int) -> torch.Tensor:
        held = self._workspaces.get(key)
        if held is None or held.numel() < nbytes:
            held = self._workspaces[key] = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        return held

    def shared(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._objects:
            self._objects[key] = make()
        return self._objects[key]

    def site(self, part: str, op: str, facts: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
        raise NotImplementedError("the spike has no composite ops")


def prepare_torch_gemm(facts: Any, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Any) -> Prepared:
    """``y = x @ weight.T`` by cuBLAS."""
    transposed = weights["weight"].t()  # a view: ``refresh`` writes the storage under it

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: Any = None) -> torch.Tensor:
        return torch.mm(x, transposed, out=out)

    def refresh(new: Mapping[str, Any]) -> None:
        weights["weight"].copy_(new["weight"])

    return Prepared(run=run, refresh=refresh)


def prepare_humming_w4a16(
    facts: Any, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Any
) -> Prepared:
    """``y = x @ dequantize(weight, scale).T``; the weights come as plain codes and are packed here."""
    from humming.forward import humming_forward
    from humming.schema.humming import HummingWeightSchema
    from humming.transform import prepare_and_transform_humming_tensors
    from humming.tune import get_heuristics_config

    n, k, group = int(facts["shape.N"]), int(facts["shape.K"]), int(facts["quant.group_size"])
    schema = HummingWeightSchema(b_dtype="uint4", weight_scale_group_size=group)

    def pack(plain: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return prepare_and_transform_humming_tensors(
            dict(plain), n, k, schema, has_bias=False, torch_dtype=torch.bfloat16, device=torch.device("cuda")
        )

    config, packed = pack(weights)
    # Stream-K meets on these; zero before and after every call, so one buffer serves all sites of a stream.
    locks = resources.workspace("humming.locks", 2048 * 4).view(torch.int32)
    tuning = json.dumps(get_heuristics_config(config, shape_m=int(facts["shape.M"])))

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: Any = None) -> torch.Tensor:
        return humming_forward(config, inputs=x, outputs=out, locks=locks, tuning_config=tuning, **packed)

    def refresh(new: Mapping[str, Any]) -> None:
        for name, tensor in pack(new)[1].items():
            if tensor is not None:
                packed[name].copy_(tensor)

    return Prepared(run=run, refresh=refresh)


def prepare_flashinfer_paged(
    facts: Any, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Any
) -> Prepared:
    """Paged attention, FA2. ``plan`` makes or reuses the wrapper for a batch size; its index buffers are as
    large as the cache, so any later lengths fit without moving what a graph has captured."""
    import flashinfer

    heads, kv_heads, head_dim = (int(facts[f"shape.{d}"]) for d in ("H", "Hkv", "D"))
    page_size, pages = int(facts["shape.page_size"]), int(facts["shape.pages"])
    workspace = resources.workspace("flashinfer.attention", 128 << 20)
    key = ("flashinfer.attention_paged.fa2", heads, kv_heads, head_dim, page_size, pages)

    def make(batch: int) -> Any:
        def buffer(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device="cuda")

        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            workspace, "NHD", use_cuda_graph=True, qo_indptr_buf=buffer(batch + 1),
            paged_kv_indptr_buf=buffer(batch + 1), paged_kv_indices_buf=buffer(pages),
            paged_kv_last_page_len_buf=buffer(batch), backend="fa2",
        )  # fmt: skip

    def plan(metadata: Mapping[str, Any]) -> Any:
        batch = metadata["last_page_len"].numel()
        wrapper = resources.shared((*key, batch), lambda: make(batch))
        wrapper.plan(
            metadata["cu_seqlens_q"], metadata["kv_indptr"], metadata["kv_indices"], metadata["last_page_len"],
            heads, kv_heads, head_dim, page_size, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
        )  # fmt: skip
        return wrapper

    def run(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: Any = None, state: Any = None
    ) -> torch.Tensor:
        return state.run(q, (k_cache, v_cache), out=out)

    return Prepared(run=run, plan=plan, plan_key=key)
