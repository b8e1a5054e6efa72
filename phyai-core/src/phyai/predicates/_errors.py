"""What is wrong with a condition: one record per problem, all of them raised together."""

from __future__ import annotations

from phyai.errors import PhyAIError


class PredicateError(PhyAIError, ValueError):
    """One problem of a condition.

    ``path`` leads from the mapping given to :func:`~phyai.predicates.match` to the culprit, key by key
    (list positions are ints). ``at_key`` says that the last key is at fault, not the value below it.
    """

    def __init__(
        self,
        message: str,
        *,
        path: tuple[str | int, ...] = (),
        value: object = None,
        suggestion: str | None = None,
        at_key: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.value = value
        self.suggestion = suggestion
        self.at_key = at_key

    def __str__(self) -> str:
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path).lstrip(".")
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{where}: {self.message}{hint}" if where else f"{self.message}{hint}"


class PredicateErrors(PhyAIError, ValueError):
    """Every problem of one condition, in ``problems``, in the order in which they were met."""

    def __init__(self, problems: tuple[PredicateError, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
