"""From observations to inputs and from chunks to actions, with the files that lie beside a checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from phyai.errors import CheckpointError, InputError

from phyai_models.pi.config import ACTION, STATE, PiConfig
from phyai_models.pi.inputs import (
    Inputs,
    Observation,
    cameras_seen,
    check_tokens,
    checked_noise,
    finite,
    float_tensor,
)
from phyai_models.processors.actions import absolute_mask, to_absolute
from phyai_models.processors.lerobot import POSTPROCESSOR, PREPROCESSOR, ProcessorFile
from phyai_models.processors.normalization import Normalizer
from phyai_models.processors.prompt import pi0_prompt, pi05_prompt
from phyai_models.processors.tokenizer import Tokenizer, load_tokenizer


class Processor:
    """lerobot's pre- and postprocessor for one checkpoint. The files are read when they are first needed."""

    def __init__(self, directory: Path, config: PiConfig, *, truncate_prompt: bool = False) -> None:
        self.directory = directory
        self.config = config
        self.truncate_prompt = truncate_prompt

    def cameras(self, observations: Sequence[Observation]) -> tuple[torch.Tensor, dict[int, tuple[str, Any]]]:
        """The camera mask of a batch of observations, and their images as
        :func:`phyai_models.pi.inputs.camera_images` takes them.

        Raises:
            InputError: an unknown camera, one given twice, or none.
        """
        if not observations:
            raise InputError("no observation is given")
        return cameras_seen(observations, self.config, self._rename)

    def inputs(
        self,
        observations: Sequence[Observation],
        images: torch.Tensor,
        camera_mask: torch.Tensor,
        noise: torch.Tensor,
    ) -> Inputs:
        """A batch of observations as the model takes it, with ``images`` and ``camera_mask``, which are there already;
        ``noise`` stands in where an observation has none.

        Raises:
            InputError: an observation does not fit the model.
            CheckpointError: the tokenizer or the statistics are missing.
        """
        states = torch.stack([self._state(o) for o in observations])
        normalized = self.state_normalizer.normalize(states)
        tokens, token_mask = self._tokens([o.instruction for o in observations], normalized)
        own = [
            noise[i] if o.noise is None else checked_noise(float_tensor(o.noise, "noise")[None], 1, self.config)[0]
            for i, o in enumerate(observations)
        ]
        padding = self.config.max_state_dim - states.shape[1]
        return Inputs(
            images=images,
            camera_mask=camera_mask,
            tokens=tokens,
            token_mask=token_mask,
            state=torch.nn.functional.pad(normalized, (0, padding)),
            noise=torch.stack(own),
        )

    def actions(self, chunk: torch.Tensor, observations: Sequence[Observation]) -> torch.Tensor:
        """``chunk [B, H, max_action_dim]`` as the robot's actions ``[B, H, action_dim]``, in its own units."""
        actions = self.action_normalizer.unnormalize(chunk[..., : self.config.action_dim])
        if self.config.use_relative_actions:
            states = torch.stack([self._state(o) for o in observations])
            relative = absolute_mask(
                self.config.action_dim, self.config.action_feature_names, self.config.relative_exclude_joints
            )
            if states.shape[-1] < self.config.action_dim:
                raise CheckpointError("actions relative to the state need a state at least as long as the action")
            actions = to_absolute(actions, states, relative)
        return actions

    @functools.cached_property
    def state_normalizer(self) -> Normalizer:
        return self._normalizer(
            self._preprocessor, PREPROCESSOR, "normalizer_processor", STATE, "STATE", self.config.state_dim
        )

    @functools.cached_property
    def action_normalizer(self) -> Normalizer:
        return self._normalizer(
            self._postprocessor, POSTPROCESSOR, "unnormalizer_processor", ACTION, "ACTION", self.config.action_dim
        )

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.directory)

    @functools.cached_property
    def _preprocessor(self) -> ProcessorFile | None:
        return ProcessorFile.load(self.directory / PREPROCESSOR)

    @functools.cached_property
    def _postprocessor(self) -> ProcessorFile | None:
        return ProcessorFile.load(self.directory / POSTPROCESSOR)

    @property
    def _rename(self) -> Mapping[str, str]:
        steps = {} if self._preprocessor is None else self._preprocessor.steps
        return steps.get("rename_observations_processor", {}).get("rename_map") or {}

    def _normalizer(
        self, file: ProcessorFile | None, name: str, step: str, feature: str, kind: str, dim: int
    ) -> Normalizer:
        modes, eps = ({}, 1e-8) if file is None else file.normalization(step)
        mode = modes.get(kind, self.config.normalization[kind])
        where = f"{self.directory / name}" if file is not None else f"{self.directory} (without {name})"
        return Normalizer.build(feature, mode, dim, {} if file is None else file.stats, where, eps)

    def _state(self, observation: Observation) -> torch.Tensor:
        state = float_tensor(observation.state, "the state")
        if state.shape != (self.config.state_dim,):
            raise InputError(
                f"the state has shape {list(state.shape)}; this robot's has {self.config.state_dim} numbers"
            )
        if not finite(state):
            raise InputError("the state holds NaN or infinite values")
        return state

    def _tokens(self, instructions: Sequence[str], states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        limit = self.config.tokenizer_max_length
        encoded = []
        for instruction, state in zip(instructions, states, strict=True):
            text = pi05_prompt(instruction, state) if self.config.family == "pi05" else pi0_prompt(instruction)
            ids = self.tokenizer.encode(text)
            encoded.append(ids[:limit] if self.truncate_prompt else ids)
        width = max(map(len, encoded))
        tokens, mask = (
            torch.zeros(len(encoded), width, dtype=torch.int64),
            torch.zeros(len(encoded), width, dtype=torch.bool),
        )
        for row, ids in enumerate(encoded):
            tokens[row, : len(ids)] = torch.tensor(ids)
            mask[row, : len(ids)] = True
        check_tokens(tokens, mask, self.config)
        return tokens, mask
