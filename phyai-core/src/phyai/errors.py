"""Every error PhyAI raises on purpose.

Each message says what was given, what is allowed and what to do next. Callers that want to
catch "anything PhyAI refused" catch :class:`PhyAIError`.
"""

from __future__ import annotations

from typing import Any


def first_line(error: BaseException) -> str:
    """What an error says first; the name of its class where it has no words, as Python's own when memory ran out.

    >>> first_line(ValueError("not this\\n  but that")), first_line(MemoryError())
    ('not this', 'MemoryError')
    """
    return str(error).strip().partition("\n")[0] or type(error).__name__


class PhyAIError(Exception):
    """Base class of every error that PhyAI raises on purpose."""


class DeclarationError(PhyAIError):
    """A plug-in declared something that cannot be true (an unknown fact, a duplicate id, …)."""


class CallError(PhyAIError, ValueError):
    """Tensors or attributes given to an op do not satisfy its signature."""


class UndeclaredFactError(PhyAIError, KeyError):
    """``prepare`` read a dynamic fact that its kernel does not list in ``specializes_on``."""

    def __str__(self) -> str:  # KeyError would print the repr of its argument
        return str(self.args[0]) if self.args else ""


class PolicyError(PhyAIError, ValueError):
    """A policy file was refused. ``problems`` holds every problem found, not just the first, and ``warnings`` what its
    reader should know beside."""

    def __init__(self, message: str, problems: tuple[Any, ...] = (), warnings: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems
        self.warnings = warnings


class NoKernelError(PhyAIError, LookupError):
    """No kernel may run a call. ``decision`` is the whole diagnosis."""

    def __init__(self, message: str, decision: object = None) -> None:
        super().__init__(message)
        self.decision = decision


class AmbiguousKernelError(NoKernelError):
    """Two backends tie and no rule settles it; the message prints the YAML line that would."""


class FrozenSiteError(PhyAIError, RuntimeError):
    """A frozen call site met a call that it has not decided."""


class CaptureError(PhyAIError, RuntimeError):
    """Something undecided or unsafe was reached while a CUDA graph was being captured."""


class KernelFailure(PhyAIError, RuntimeError):
    """A kernel raised while it planned, was warmed up or was captured in a CUDA graph. ``site`` and ``kernel`` name
    it."""

    def __init__(self, message: str, site: str, kernel: str) -> None:
        super().__init__(message)
        self.site = site
        self.kernel = kernel

    @classmethod
    def of(cls, error: Exception, *, site: str, kernel: str, meanwhile: str) -> KernelFailure:
        """What ``error`` says, and where and while what it was raised."""
        return cls(f"{kernel} failed at {site} while {meanwhile}: {type(error).__name__}: {error}", site, kernel)


class DeviceMemoryError(PhyAIError, MemoryError):
    """A device has too little memory for what was asked; the message says how much was needed and free."""


class NeedsReload(PhyAIError, RuntimeError):
    """A new policy needs weights in another layout. ``sites`` names the sites concerned."""

    def __init__(self, message: str, sites: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.sites = sites


class CheckpointError(PhyAIError, ValueError):
    """A checkpoint was refused: malformed, incomplete, or in a form that is not supported."""


class InputError(PhyAIError, ValueError):
    """An observation given to an engine does not fit the model."""
