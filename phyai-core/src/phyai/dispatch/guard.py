"""The facts that ``prepare`` gets: reading a dynamic one that its kernel does not declare raises."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from phyai.errors import UndeclaredFactError
from phyai.facts import Facts, FactValue
from phyai.kernel import Kernel


class PrepareFacts(Facts):
    """Static facts, and the dynamic ones in the kernel's ``specializes_on``.

    Several calls share what ``prepare`` returns; a kernel that looked at a fact in which they differ would
    be right for the first of them only.
    """

    __slots__ = ("_hidden", "_kernel")

    def __init__(self, facts: Facts, kernel: Kernel, open_facts: Collection[str]) -> None:
        hidden = frozenset(open_facts) - frozenset(kernel.specializes_on)
        super().__init__({name: value for name, value in facts.items() if name not in hidden})
        self._hidden = hidden
        self._kernel = kernel.id

    def __getitem__(self, name: str) -> FactValue:
        self._check(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._check(name)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Like a mapping's; but a fact that is not declared raises instead of giving the default."""
        self._check(name)
        return super().get(name, default)

    def _check(self, name: object) -> None:
        if name in self._hidden:
            raise UndeclaredFactError(
                f"{self._kernel}: prepare read {name}, which changes from call to call; "
                f"add it to the kernel's specializes_on, or read the tensors in run"
            )
