"""What an importer is: a reader of one tool's quantization configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from phyai.errors import PhyAIError
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.formats import load
from phyai.quant.names import Matcher, PatternError
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.scheme import QuantScheme
from phyai.quant.storage import Storage


@attrs.frozen
class FoundConfig:
    """A quantization configuration that was found: its body, its file, and the keys that lead to it.

    ``model`` is the object that it sits in, or that object's parent when it sits in a sub-configuration;
    ``{}`` where it stands alone.
    """

    body: Mapping[str, Any]
    file: str
    path: tuple[str, ...] = ()
    model: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def source(self) -> str:
        return ": ".join(part for part in (self.file, ".".join(self.path)) if part)


@attrs.frozen
class Recognized:
    """A checkpoint whose quantization is understood.

    ``storages`` maps the names that the plan's rules use to how such layers are stored. ``kv_cache`` is what
    the configuration says of the key/value cache, as plain data. ``notes`` are for people.
    """

    method: str
    plan: QuantPlan
    source: str
    storages: Mapping[str, Storage] = attrs.field(factory=dict)
    kv_cache: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


@attrs.frozen
class Refused:
    """A checkpoint that is not loaded: why, and what would work. ``method`` is its tool, where known."""

    reason: str
    instead: str = ""
    method: str | None = None
    source: str = ""

    def __str__(self) -> str:
        return self.reason + (f". What would work: {self.instead}" if self.instead else "")


class Refuse(PhyAIError):
    """Raised inside an importer to refuse what it recognizes but cannot honour. ``method`` is the tool, where the
    configuration does not name it."""

    def __init__(self, reason: str, instead: str = "", method: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.instead = instead
        self.method = method


RecognizeFn: TypeAlias = Callable[[FoundConfig, Checkpoint], Recognized | None]


@attrs.frozen
class Importer:
    """A reader of one tool's configurations, found through the ``phyai.importers`` entry points.

    ``recognize(found, checkpoint)`` (or ``"module:function"``) returns None for a configuration of another
    tool, and raises :class:`Refuse` for one of its own that cannot be honoured.
    """

    name: str
    recognize: str | RecognizeFn = attrs.field(repr=False)
    doc: str = ""

    def load(self) -> RecognizeFn:
        return load(self.recognize)


def rule(
    kind: str,
    pattern: str,
    scheme: QuantScheme | None,
    storage: str | None = None,
    *,
    id: str = "",
) -> QuantRule:
    """A rule with one matcher.

    Raises:
        Refuse: the pattern is not a bounded regular expression.
    """
    try:
        return QuantRule(((Matcher(kind, pattern),),), scheme, storage=storage, id=id or f"{kind}:{pattern}")
    except PatternError as error:
        raise Refuse(f"a name pattern of the configuration is not supported: {error}") from None


def string_list(body: Mapping[str, Any], key: str) -> list[str]:
    """A list of names; absent and null are empty.

    Raises:
        Refuse: it is something else.
    """
    value = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise Refuse(f"{key} must be a list of names, not {value!r:.100}")
    return value


def method_of(body: Mapping[str, Any]) -> str:
    """The configuration's ``quant_method`` in lower case, empty when there is none."""
    value = body.get("quant_method")
    return value.lower() if isinstance(value, str) else ""


def integer(body: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number of the configuration.

    Raises:
        Refuse: it is missing without a default, or something else.
    """
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refuse(f"{key} must be a whole number, not {value!r:.100}")
    return value
