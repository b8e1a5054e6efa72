"""What is wrong with a policy file, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from phyai.errors import PolicyError
from phyai.facts import Facts
from phyai.policy._model import Location
from phyai.spelling import did_you_mean

#: A report stops here: nobody reads more, and a file could be made to yield millions.
MAX_PROBLEMS = 100
#: How much of the offending text a problem quotes.
MAX_QUOTED = 120


def _shortened(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"


@attrs.frozen
class Problem:
    """One problem: ``file:line:col: message (got `…`; suggestion)``.

    >>> print(Problem(Location("p.yaml", 3, 5), "unknown key", "restrictto", "did you mean `restrict_to`?"))
    p.yaml:3:5: unknown key (got `restrictto`; did you mean `restrict_to`?)
    """

    location: Location
    message: str
    got: str | None = attrs.field(default=None, converter=_shortened)
    suggestion: str | None = None
    #: For two rules that conflict: a call that both match.
    witness: Facts | None = attrs.field(default=None, repr=False)

    def __str__(self) -> str:
        said = self.got is None or f"'{self.got}'" in self.message  # the message quotes it already
        details = "; ".join(part for part in (None if said else f"got `{self.got}`", self.suggestion) if part)
        return f"{self.location}: {self.message}" + (f" ({details})" if details else "")


class TooManyProblems(Exception):
    """Ends the checking of a file once ``MAX_PROBLEMS`` are found."""


@attrs.define
class Report:
    """Collects the errors and the warnings of one file."""

    errors: list[Problem] = attrs.field(factory=list)
    warnings: list[Problem] = attrs.field(factory=list)

    def error(
        self,
        location: Location,
        message: str,
        got: str | None = None,
        suggestion: str | None = None,
        *,
        witness: Facts | None = None,
    ) -> None:
        self.errors.append(Problem(location, message, got, suggestion, witness))
        if len(self.errors) >= MAX_PROBLEMS:
            raise TooManyProblems

    def warn(self, location: Location, message: str, got: str | None = None, suggestion: str | None = None) -> None:
        self.warnings.append(Problem(location, message, got, suggestion))

    def raise_errors(self) -> None:
        """Raise one PolicyError that holds every error, and every warning, in the order of the file; nothing when there
        is no error."""
        if not self.errors:
            return
        problems = tuple(sorted(self.errors, key=by_place))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        more = " (stopped there)" if len(problems) >= MAX_PROBLEMS else ""
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise PolicyError(f"{problems[0].location.file}: {count}{more}\n{lines}", problems, self.sorted_warnings())

    def sorted_warnings(self) -> tuple[Problem, ...]:
        """Every warning, in the order of the file."""
        return tuple(sorted(self.warnings, key=by_place))


def by_place(problem: Problem) -> tuple[int, int]:
    return problem.location.line, problem.location.column


def one_of(name: str, known: Iterable[str]) -> str:
    """The nearest known name, or all of them."""
    options = list(known)
    return did_you_mean(name, options) or f"one of {', '.join(f'`{option}`' for option in options)}"
