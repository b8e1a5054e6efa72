"""The ``phyai`` command. Each sub-command is one module; see :mod:`phyai.cli.command` for what it must have."""

from phyai.cli.app import main
from phyai.cli.command import Context, Exit

__all__ = ["Context", "Exit", "main"]
