"""A π model as an engine hosts it: its arguments, its requests and its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.engine import Host
from phyai.errors import InputError

from phyai_models.pi.config import PiConfig
from phyai_models.pi.inputs import Observation, from_lerobot
from phyai_models.pi.loading import load_model
from phyai_models.pi.model import Savings
from phyai_models.pi.processor import Processor
from phyai_models.pi.runner import BatchResult, Runner
from phyai_models.weights import Checkpoint


def _steps(_: Any, attribute: Any, value: int | None) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise InputError(f"{attribute.name}={value!r}; give a whole number of at least 1")


@attrs.frozen
class PiArgs:
    """Arguments of a π model.

    ``checkpoint_dir`` holds ``config.json`` and the weights, and for :class:`Observation` requests the processor
    files and the tokenizer. ``num_steps`` replaces the checkpoint's number of Euler steps. ``seed`` makes the
    noise that requests do not bring reproducible. ``truncate_prompt`` cuts prompts that are too long instead of
    refusing them. ``savings`` turns exact savings off, to compare. ``progress`` is called with
    (bytes read, bytes in all) while the weights are loaded.
    """

    checkpoint_dir: str | Path
    num_steps: int | None = attrs.field(default=None, validator=_steps)
    seed: int | None = None
    truncate_prompt: bool = False
    savings: Savings = attrs.field(factory=Savings)
    progress: Any = None


@attrs.frozen
class LerobotBatch:
    """A batch in lerobot's own names, as its preprocessor left it: images in [0, 1], normalized state, tokens and
    their mask, and optionally ``noise``. ``trace`` also returns what every stage computed."""

    tensors: Mapping[str, torch.Tensor]
    num_steps: int | None = attrs.field(default=None, validator=_steps)
    trace: bool = False


@attrs.frozen
class ActionChunk:
    """What the robot should do: ``actions`` float32 ``[chunk_size, action_dim]``, in its own units, one row a step."""

    actions: torch.Tensor


class HostedPi:
    """Answers :class:`Observation` with :class:`ActionChunk`, a list of them with a list (one batch), and
    :class:`LerobotBatch` with :class:`BatchResult`."""

    def __init__(self, family: str, args: PiArgs, host: Host) -> None:
        directory = Path(args.checkpoint_dir)
        self.config = PiConfig.load(directory, family)
        checkpoint = Checkpoint.open(directory)
        total = sum(info.end - info.begin for info in checkpoint.tensors.values())
        read = 0

        def progress(count: int) -> None:
            nonlocal read
            read += count
            if args.progress is not None:
                args.progress(read, total)

        model = load_model(
            checkpoint,
            self.config,
            host.dispatcher,
            device=host.device,
            params_dtype=host.config.device.params_dtype,
            savings=args.savings,
            progress=progress,
        )
        self.args = args
        self.runner: Runner | None = Runner(model, self.config)
        self.processor = Processor(directory, self.config, truncate_prompt=args.truncate_prompt)
        self._generator = torch.Generator()
        if args.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(args.seed)

    def step(self, request: Any) -> Any:
        """Answer one request; see the class.

        Raises:
            InputError: the request does not fit the model.
        """
        if isinstance(request, LerobotBatch):
            return self._batch(request)
        if isinstance(request, Observation):
            return self._observations([request])[0]
        if isinstance(request, Sequence) and request and all(isinstance(o, Observation) for o in request):
            return self._observations(request)
        raise InputError(
            f"a request of type {type(request).__name__}; give an Observation, a list of them, or a LerobotBatch"
        )

    def close(self) -> None:
        self.runner = None

    def _observations(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        inputs = self.processor.inputs(observations, self._noise(len(observations)))
        _ = self.processor.action_normalizer  # a missing file is said before the work, not after
        assert self.runner is not None
        chunk = self.runner(inputs, self._steps(None))
        return [ActionChunk(actions) for actions in self.processor.actions(chunk, observations)]

    def _batch(self, request: LerobotBatch) -> BatchResult:
        assert self.runner is not None
        tokens = request.tensors.get("observation.language.tokens")
        size = tokens.shape[0] if tokens is not None and tokens.ndim else 0
        noise = None if "noise" in request.tensors else self._noise(size)
        inputs = from_lerobot(request.tensors, self.config, noise)
        stages: dict[str, torch.Tensor] = {}
        chunk = self.runner(inputs, self._steps(request.num_steps), stages if request.trace else None)
        return BatchResult(chunk[..., : self.config.action_dim].contiguous(), stages)

    def _steps(self, asked: int | None) -> int:
        return asked or self.args.num_steps or self.config.num_inference_steps

    def _noise(self, batch: int) -> torch.Tensor:
        shape = (batch, self.config.chunk_size, self.config.max_action_dim)
        return torch.randn(shape, generator=self._generator)
