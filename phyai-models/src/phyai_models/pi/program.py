"""One inference of fixed sizes over buffers that stay in place: what a CUDA graph is captured of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from phyai_models.layers import KVCache, Tokens
from phyai_models.pi.bucketed import Filling, Shape
from phyai_models.pi.inputs import Inputs
from phyai_models.pi.layout import Layout, make_layout
from phyai_models.pi.model import PiModel
from phyai_models.runner import Mirror, Recording

METADATA = ("cu_seqlens_q", "kv_indptr", "kv_indices", "last_page_len")


class Program:
    """The stages ``vision``, ``prefix`` and ``expert`` of one inference.

    :meth:`load` writes a batch into the buffers, :attr:`recording` computes, :attr:`actions` float32
    ``[batch, chunk, action]`` holds the result until the next time. Rows that fill up a bucket are computed and
    written behind the keys that anybody reads.
    """

    def __init__(self, model: PiModel, shape: Shape, cache: KVCache) -> None:
        self.model, self.shape, self.cache = model, shape, cache
        config, device = model.config, model.device
        batch, suffix = shape.batch, sum(model.segments)
        rows = batch * (shape.cameras * config.vision.patches + shape.prompt)
        requests = batch * len(model.segments)
        self._index = Mirror(
            {
                "token_ids": (batch * shape.prompt,), "gather": (rows,),
                "prefix.positions": (rows,), "prefix.slots": (rows,),
                "suffix.positions": (batch * suffix,), "suffix.slots": (batch * suffix,),
            },
            torch.int64, device,
        )  # fmt: skip
        self._metadata = Mirror(
            {
                f"{part}.{name}": (n + (name in ("cu_seqlens_q", "kv_indptr")),)
                for part, n in (("prefix", batch), ("suffix", requests)) for name in METADATA
            },
            torch.int32, device,
        )  # fmt: skip
        self._sample = Mirror(
            {"state": (batch, config.max_state_dim), "noise": (batch, config.chunk_size, config.max_action_dim)},
            torch.float32, device,
        )  # fmt: skip
        size = config.vision.image_size
        self._images = Mirror({"images": (batch, shape.cameras, 3, size, size)}, torch.float32, device)
        self.actions = torch.zeros(batch, config.chunk_size, config.max_action_dim, device=device)
        self.prefix, self.suffix = (self._tokens(part) for part in ("prefix", "suffix"))
        self.recording: Recording | None = None
        self._patches = self._no_patches = torch.empty(0, device=device)
        self._filling: Filling | None = None
        self._lengths: list[int] = []
        self._uploaded = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def stages(self) -> Mapping[str, Callable[[], None]]:
        """The parts of :meth:`compute`, in their order."""
        return {"vision": self._vision, "prefix": self._fill, "expert": self._expert}

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return sum(m.nbytes for m in (self._index, self._metadata, self._sample, self._images)) + self.actions.nbytes

    def compute(self) -> None:
        """One inference, launched kernel by kernel."""
        for stage in self.stages.values():
            stage()
        self._patches = self._no_patches  # a graph's memory serves what comes next

    def load(self, inputs: Inputs, *, replan: bool) -> None:
        """Write a batch into the buffers, and plan again where its lengths ask for it.

        Tensors of ``inputs`` may lie on the host or on the device. ``replan``: another program may have planned since.
        """
        if self._uploaded is not None:
            self._uploaded.synchronize()  # the buffers on the host may still be on their way
        filling, lengths = self._arranged(inputs)
        self._index.host["token_ids"].copy_(filling.tokens(inputs.tokens).flatten())
        direct = inputs.images.device.type != "cpu"
        filling.images(inputs.images, (self._images.device if direct else self._images.host)["images"])
        sample = {"state": inputs.state, "noise": inputs.noise}
        for name, value in sample.items():
            if value.device.type == "cpu":
                self._sample.host[name].copy_(value)
        for mirror in (self._index, self._metadata, self._sample, *(() if direct else (self._images,))):
            mirror.upload()
        for name, value in sample.items():
            if value.device.type != "cpu":
                self._sample.device[name].copy_(value)
        if self._uploaded is not None:
            self._uploaded.record()
        if self.recording is not None and (replan or lengths != self._lengths):
            for tokens in (self.prefix, self.suffix):
                tokens.replan() if self.recording.captured else tokens.forget_plans()
        self._filling, self._lengths = filling, lengths

    def forget_plans(self) -> None:
        """Other kernels may be chosen at the next call."""
        self.prefix.forget_plans()
        self.suffix.forget_plans()

    def _tokens(self, part: str) -> Tokens:
        index, metadata = self._index.device, self._metadata.device
        return Tokens(
            index[f"{part}.positions"], index[f"{part}.slots"], {n: metadata[f"{part}.{n}"] for n in METADATA}
        )

    def _arranged(self, inputs: Inputs) -> tuple[Filling, list[int]]:
        """How ``inputs`` fill the buffers, and their valid prefix tokens. Under the masks of the last request, as a
        robot sends one after the other, its layout stands."""
        if self._filling is not None and self._filling.serves(inputs):
            return self._filling, self._lengths
        model = self.model
        filling = Filling.of(inputs, self.shape, drop_masked=model.savings.drop_masked)
        layout = make_layout(
            filling.camera_mask, filling.token_mask, filling.tokens(inputs.tokens),
            patches=model.config.vision.patches, segments=model.segments, page=model.page_size, drop_masked=False,
        )  # fmt: skip
        self._filling = None  # until all of this batch is in place
        self._write(layout)
        return filling, layout.prefix.metadata["last_page_len"].tolist()

    def _write(self, layout: Layout) -> None:
        index, metadata = self._index.host, self._metadata.host
        index["gather"].copy_(layout.gather)
        for part, tokens in (("prefix", layout.prefix), ("suffix", layout.suffix)):
            index[f"{part}.positions"].copy_(tokens.positions)
            index[f"{part}.slots"].copy_(tokens.slots)
            for name in METADATA:
                metadata[f"{part}.{name}"].copy_(tokens.metadata[name])

    # The stages

    def _vision(self) -> None:
        self._patches = self.model.embed_images(self._images.device["images"].flatten(0, 1))

    def _fill(self) -> None:
        text = self.model.embed_tokens(self._index.device["token_ids"])
        rows = torch.cat([self._patches.to(text.dtype), text]).index_select(0, self._index.device["gather"])
        self.model.fill(rows, self.prefix, self.cache)

    def _expert(self) -> None:
        sample, steps = self._sample.device, self.shape.steps
        self.actions.copy_(self.model.sample(sample["noise"], sample["state"], steps, self.suffix, self.cache))
