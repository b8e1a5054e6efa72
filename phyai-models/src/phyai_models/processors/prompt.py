"""The text that π models are prompted with."""

from __future__ import annotations

import numpy as np
import torch
from phyai.errors import InputError

STATE_BINS = 256


def discretize_state(state: torch.Tensor) -> list[int]:
    """A normalized state ``[D]`` as bins of 256 over [-1, 1]: 0..255, and -1 below the range.

    openpi's ``PaligemmaTokenizer``, as lerobot 0.6.1 applies it to π0.5.

    >>> discretize_state(torch.tensor([-1.5, -1.0, 0.0, 0.999, 7.0]))
    [-1, 0, 128, 255, 255]
    """
    bins = np.linspace(-1.0, 1.0, STATE_BINS + 1)[:-1]
    return [int(i) - 1 for i in np.digitize(state.numpy(), bins)]


def pi05_prompt(instruction: str, state: torch.Tensor) -> str:
    r"""π0.5 reads the state as text.

    >>> pi05_prompt("pick_up the cup ", torch.tensor([0.0, 1.0]))
    'Task: pick up the cup, State: 128 255;\nAction: '
    """
    task = checked(instruction).strip().replace("_", " ").replace("\n", " ")
    return f"Task: {task}, State: {' '.join(map(str, discretize_state(state)))};\nAction: "


def pi0_prompt(instruction: str) -> str:
    r"""π0 reads the instruction alone, ended by a newline.

    >>> pi0_prompt("pick up the cup")
    'pick up the cup\n'
    """
    text = checked(instruction)
    return text if text.endswith("\n") else f"{text}\n"


def checked(instruction: str) -> str:
    """``instruction``, when it says anything.

    Raises:
        InputError: it is empty, or not a string.
    """
    if not isinstance(instruction, str) or not instruction.strip():
        raise InputError(f"the instruction is {instruction!r}; say in words what the robot should do")
    return instruction
