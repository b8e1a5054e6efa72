"""A π checkpoint as those see it who quantize it: what its matrices are called, and what it answers."""

from __future__ import annotations

from pathlib import Path

import torch
from phyai.catalog import Catalog
from phyai.engine import Engine, EngineArgs
from phyai.engine.plugin import Watch
from phyai.errors import CheckpointError, InputError
from phyai.files.json_file import read_json
from phyai.files.safetensors_file import read_all
from phyai.policy import Policy

from phyai_models.layers import Scope
from phyai_models.layers.linear import matrices
from phyai_models.pi.config import FAMILIES, STATE, PiConfig
from phyai_models.pi.hosted import LerobotBatch, PiArgs
from phyai_models.pi.inputs import NOISE, TOKEN_MASK, TOKENS
from phyai_models.pi.loading import model_class
from phyai_models.pi.model import Savings
from phyai_models.pi.precision import Precision
from phyai_models.quantized.watching import watched

PREFIXES = ("", "model.")


class PiStudy:
    """See :class:`phyai.engine.plugin.Study`."""

    def __init__(self, directory: Path, config: PiConfig, catalog: Catalog) -> None:
        self.directory, self.config, self.catalog = directory, config, catalog
        self.paths = matrix_paths(config)

    def answers(
        self, policy: Policy, *, inputs: str | Path | None = None, samples: int = 8, watch: Watch | None = None
    ) -> torch.Tensor:
        """Actions, float32 ``[samples, chunk, action_dim]``, still normalized.

        Raises:
            InputError: the observations do not fit the model.
        """
        observations = made_up(self.config, samples) if inputs is None else read(Path(inputs))
        plugin = self.catalog.model(self.config.family)
        arguments: PiArgs = plugin.arguments_class()(self.directory)
        found = []
        with Engine(EngineArgs(self.config.family, arguments), policy=policy, catalog=self.catalog) as engine:
            for number in range(samples):
                observation = observations[number % len(observations)]
                batch = LerobotBatch({**observation, NOISE: self._noise(number)})
                if watch is not None:
                    engine.step(batch)  # calls are decided by now, so that every site is there
                    with watched(engine.dispatcher, self.paths.values(), watch):
                        found.append(engine.step(batch).actions[0])
                else:
                    found.append(engine.step(batch).actions[0])
        return torch.stack(found)

    def _noise(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        return torch.randn(1, self.config.chunk_size, self.config.max_action_dim, generator=generator)


def study(directory: str | Path, catalog: Catalog) -> PiStudy | None:
    """The study of a π checkpoint; None for a folder that is none."""
    directory = Path(directory)
    path = directory / "config.json"
    if not path.is_file() or read_json(path).get("type") not in FAMILIES:
        return None
    return PiStudy(directory, PiConfig.load(directory), catalog)


def matrix_paths(config: PiConfig) -> dict[str, str]:
    """Module paths of the model's matrices by their names in a checkpoint, with and without lerobot's prefix."""
    scope = Scope(None, torch.device("meta"), config.family, "", torch.float32, torch.float32)  # type: ignore[arg-type]
    model = model_class(config.family)(scope, config, Precision.of(config, None), Savings.none())
    found = {shard.source: shard.path for matrix in matrices(model) for shard in matrix.shards}
    return {prefix + source: path for prefix in PREFIXES for source, path in found.items()}


def made_up(config: PiConfig, count: int) -> list[dict[str, torch.Tensor]]:
    """Observations of noise: images, an instruction, and a state, as lerobot's preprocessor leaves them."""
    size, slots = config.vision.image_size, config.tokenizer_max_length
    found = []
    for number in range(count):
        generator = torch.Generator().manual_seed(1000 + number)
        tensors = {camera: torch.rand(1, 3, size, size, generator=generator) for camera in config.cameras}
        tensors[TOKENS] = torch.randint(1, min(config.vocab_size, 1000), (1, slots), generator=generator)
        tensors[TOKEN_MASK] = torch.arange(slots)[None] < max(slots // 2 - number % 8, 1)
        tensors[STATE] = torch.rand(1, config.state_dim, generator=generator) * 2 - 1
        found.append(tensors)
    return found


def read(path: Path) -> list[dict[str, torch.Tensor]]:
    """The observations of a batch in lerobot's names, one by one.

    Raises:
        InputError: the file is no such batch.
    """
    try:
        tensors = read_all(path)
    except CheckpointError as error:
        raise InputError(str(error)) from error
    sizes = {tensor.shape[0] for tensor in tensors.values() if tensor.ndim}
    if len(sizes) != 1 or not all(tensor.ndim for tensor in tensors.values()):
        raise InputError(f"{path}: the tensors of a batch share their first dimension; here it is {sorted(sizes)}")
    return [{name: tensor[i : i + 1] for name, tensor in tensors.items()} for i in range(sizes.pop())]
