"""One inference of fixed sizes over buffers that stay in place: what a CUDA graph is captured of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from phyai_models.layers import KVCache, Tokens
from phyai_models.pi.bucketed import Filling, Shape
from phyai_models.pi.inputs import Inputs
from phyai_models.pi.layout import Layout, make_layout
from phyai_models.pi.model import PiModel
from phyai_models.pi.vision_program import VisionProgram
from phyai_models.runner import Mirror, Recording

#: What every request brings anew ends with this one; what follows from its lengths comes behind.
LAST_OF_REQUEST = "noise"
METADATA = ("cu_seqlens_q", "kv_indptr", "kv_indices", "last_page_len")


class Program:
    """One inference: the stage ``vision``, which other programs share, then ``prefix`` and ``expert``.

    :meth:`load` writes a batch into the buffers, :attr:`recording` computes, :attr:`actions` float32
    ``[batch, chunk, action]`` holds the result until the next time. Rows that fill up a bucket are computed and
    written behind the keys that anybody reads. What is behind vision has a recording of its own, :attr:`rest`, with
    :meth:`load_prompt` before it: a prompt may still be made ready while the images are looked at.
    """

    def __init__(self, model: PiModel, shape: Shape, cache: KVCache, vision: VisionProgram) -> None:
        self.model, self.shape, self.cache, self.vision = model, shape, cache, vision
        config, device = model.config, model.device
        batch, suffix = shape.batch, sum(model.segments)
        rows = batch * (shape.cameras * config.vision.patches + shape.prompt)
        requests, whole, narrow = batch * len(model.segments), torch.int64, torch.int32
        self._small = Mirror(
            {
                "tokens": (whole, batch, shape.prompt),
                "state": (torch.float32, batch, config.max_state_dim),
                LAST_OF_REQUEST: (torch.float32, batch, config.chunk_size, config.max_action_dim),
                "gather": (whole, rows), "prefix.positions": (whole, rows), "prefix.slots": (whole, rows),
                "suffix.positions": (whole, batch * suffix), "suffix.slots": (whole, batch * suffix),
                **{
                    f"{part}.{name}": (narrow, n + (name in ("cu_seqlens_q", "kv_indptr")))
                    for part, n in (("prefix", batch), ("suffix", requests)) for name in METADATA
                },
            },
            device,
        )  # fmt: skip
        self.actions = torch.zeros(batch, config.chunk_size, config.max_action_dim, device=device)
        self.prefix, self.suffix = (self._tokens(part) for part in ("prefix", "suffix"))
        self.rest: Recording | None = None
        self._filling: tuple[Filling, Filling] | None = None  # of cameras and of tokens
        self._lengths: list[int] = []
        self._uploaded = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def stages(self) -> Mapping[str, Callable[[], None]]:
        """The parts of :meth:`compute`, in their order."""
        return {"vision": self.vision.compute, "prefix": self._fill, "expert": self._expert}

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device, without those of ``vision``."""
        return self._small.nbytes + self.actions.nbytes

    @property
    def recording(self) -> Recording:
        """The whole inference."""
        first, then = self.vision.recording, self.rest
        assert first is not None
        assert then is not None  # the runner records both before it gives a program out

        def replay() -> None:
            first.replay()
            then.replay()

        return Recording(replay, then.captured, first.nbytes + then.nbytes)

    def compute(self) -> None:
        """One inference, launched kernel by kernel."""
        self.vision.compute()
        self.compute_rest()

    def compute_rest(self) -> None:
        """What is behind the images."""
        self._fill()
        self._expert()

    def load(self, inputs: Inputs, *, replan: bool) -> None:
        """Write a batch into the buffers, and plan again where its lengths ask for it.

        Tensors of ``inputs`` may lie on the host or on the device. ``replan``: another program may have planned since.
        """
        self.vision.load(inputs.images, inputs.camera_mask)
        self.load_prompt(inputs, replan=replan)

    def load_prompt(self, inputs: Inputs, *, replan: bool) -> None:
        """The same without the images."""
        if self._uploaded is not None:
            self._uploaded.synchronize()  # the buffers on the host may still be on their way
        before = self._filling
        filling, lengths = self._arranged(inputs)
        small = self._small.host
        small["tokens"].copy_(filling[1].tokens(inputs.tokens))
        sample = {"state": inputs.state, "noise": inputs.noise}
        for name, value in sample.items():
            if value.device.type == "cpu":
                small[name].copy_(value)
        self._small.upload(LAST_OF_REQUEST if filling is before else None)
        for name, value in sample.items():
            if value.device.type != "cpu":
                self._small.device[name].copy_(value)
        if self._uploaded is not None:
            self._uploaded.record()
        if self.rest is not None and (replan or lengths != self._lengths):
            self._lengths = []  # until all have planned
            for tokens in (self.prefix, self.suffix):
                tokens.replan() if self.rest.captured else tokens.forget_plans()
        self._filling, self._lengths = filling, lengths

    def serves(self, inputs: Inputs, steps: int) -> bool:
        """Whether this is the program of ``inputs`` because it was that of the last request, under the same masks."""
        return self.shape.steps == steps and self._filled_by(inputs)

    def forget_plans(self) -> None:
        """Other kernels may be chosen at the next call."""
        self.prefix.forget_plans()
        self.suffix.forget_plans()

    def _tokens(self, part: str) -> Tokens:
        small = self._small.device
        metadata = {name: small[f"{part}.{name}"] for name in METADATA}
        return Tokens(small[f"{part}.positions"], small[f"{part}.slots"], metadata)

    def _filled_by(self, inputs: Inputs) -> bool:
        """Whether ``inputs`` fill the buffers as those of the last request do."""
        if self._filling is None:
            return False
        cameras, tokens = self._filling
        return cameras.serves(inputs.camera_mask) and tokens.serves(inputs.token_mask)

    def _arranged(self, inputs: Inputs) -> tuple[tuple[Filling, Filling], list[int]]:
        """How ``inputs`` fill the buffers, and their valid prefix tokens. Under the masks of the last request, as a
        robot sends one after the other, its layout stands."""
        if self._filling is not None and self._filled_by(inputs):
            return self._filling, self._lengths
        model, drop = self.model, self.model.savings.drop_masked
        cameras = Filling.of(inputs.camera_mask, self.shape.cameras, drop_masked=drop)
        tokens = Filling.of(inputs.token_mask, self.shape.prompt, drop_masked=drop)
        layout = make_layout(
            cameras.mask, tokens.mask, tokens.tokens(inputs.tokens), patches=model.config.vision.patches,
            segments=model.segments, page=model.page_size, drop_masked=False,
        )  # fmt: skip
        self._filling = None  # until all of this batch is in place
        self._write(layout)
        return (cameras, tokens), layout.prefix.metadata["last_page_len"].tolist()

    def _write(self, layout: Layout) -> None:
        small = self._small.host
        small["gather"].copy_(layout.gather)
        for part, tokens in (("prefix", layout.prefix), ("suffix", layout.suffix)):
            small[f"{part}.positions"].copy_(tokens.positions)
            small[f"{part}.slots"].copy_(tokens.slots)
            for name in METADATA:
                small[f"{part}.{name}"].copy_(tokens.metadata[name])

    # The stages

    def _fill(self) -> None:
        small = self._small.device
        ids, images = small["tokens"].view(-1), self.vision.rows
        embeddings = self.vision.embeddings[: images + len(ids)]
        self.model.embed_tokens(ids, embeddings[images:])
        self.model.fill(embeddings.index_select(0, small["gather"]), self.prefix, self.cache)

    def _expert(self) -> None:
        small, steps = self._small.device, self.shape.steps
        self.actions.copy_(self.model.sample(small["noise"], small["state"], steps, self.suffix, self.cache))
