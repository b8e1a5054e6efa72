"""The processor files that lerobot saves beside a checkpoint.

``policy_preprocessor.json`` and ``policy_postprocessor.json`` list named steps with their settings; the
statistics are in the safetensors file that the normalizing step names. Every step is known by name or the
checkpoint is refused: a step that is skipped would change what the robot does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import attrs
import torch
from phyai.errors import CheckpointError
from phyai.files.json_file import read_json
from phyai.files.safetensors_file import read_all

PREPROCESSOR = "policy_preprocessor.json"
POSTPROCESSOR = "policy_postprocessor.json"

KNOWN_STEPS = frozenset(
    {
        "rename_observations_processor", "to_batch_processor", "relative_actions_processor", "normalizer_processor",
        "pi05_prepare_state_tokenizer_processor_step", "pi0_new_line_processor", "tokenizer_processor",
        "device_processor", "unnormalizer_processor", "absolute_actions_processor",
    }
)  # fmt: skip


@attrs.frozen
class ProcessorFile:
    """One of the two files: its steps' settings by step name, and the statistics that came with it."""

    path: Path
    steps: Mapping[str, Mapping[str, Any]]
    stats: Mapping[str, torch.Tensor]

    @classmethod
    def load(cls, path: Path) -> ProcessorFile | None:
        """Read ``path``; None when there is no such file.

        Raises:
            CheckpointError: malformed, a step that is not known, or statistics that cannot be read.
        """
        if not path.is_file():
            return None
        entries = read_json(path).get("steps")
        if not isinstance(entries, list):
            raise CheckpointError(f"{path} has no list of steps")
        steps: dict[str, Mapping[str, Any]] = {}
        stats: dict[str, torch.Tensor] = {}
        for entry in entries:
            name = entry.get("registry_name") if isinstance(entry, dict) else None
            config = (entry.get("config") or {}) if isinstance(entry, dict) else None
            if name not in KNOWN_STEPS or not isinstance(config, dict):
                raise CheckpointError(
                    f"{path}: step {name!r} is not one that can be honoured ({', '.join(sorted(KNOWN_STEPS))})"
                )
            steps[name] = config
            if entry.get("state_file") is not None:
                stats |= read_all(_inside(path.parent, entry["state_file"], path))
        return cls(path, steps, stats)

    def normalization(self, step: str) -> tuple[Mapping[str, str], float]:
        """The modes by feature type and the epsilon of a (un)normalizing ``step``."""
        config = self.steps.get(step, {})
        modes = config.get("norm_map") or {}
        if not isinstance(modes, dict):
            raise CheckpointError(f"{self.path}: norm_map of {step} is not a mapping")
        return modes, float(config.get("eps", 1e-8))


def _inside(directory: Path, name: object, named_by: Path) -> Path:
    """``directory / name``, where ``name`` was read from the untrusted file ``named_by``.

    Raises:
        CheckpointError: ``name`` is not a relative path that stays inside ``directory``.
    """
    text = str(name)
    paths = (PurePosixPath(text), PureWindowsPath(text))
    if not isinstance(name, str) or not text or any(p.is_absolute() or p.drive or ".." in p.parts for p in paths):
        raise CheckpointError(f"{named_by} names the file {name!r}, which is outside {directory}; that is refused")
    return directory / text
