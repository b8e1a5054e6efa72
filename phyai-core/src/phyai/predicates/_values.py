"""One value of a ``match:`` mapping, read by the kind of its fact."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from phyai.facts import CORE_FACTS, DTYPES, FactKind, FactSpec, Vocabulary, canonical_dtype
from phyai.predicates._algebra import Predicate, all_of
from phyai.predicates._errors import PredicateError
from phyai.predicates._globs import compile_glob, is_glob
from phyai.predicates._literals import NOUNS, Compare, Contains, Glob, MultipleOf, OneOf, Present, is_number
from phyai.predicates._order import KNOWN_ARCHS, arch_key, public_version
from phyai.spelling import did_you_mean

_CORE = Vocabulary(CORE_FACTS)
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER_RE = re.compile(_NUMBER)
_RANGE_RE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})")
_ORDER_RE = re.compile(r"(<=|>=|==|!=|~=|<|>)\s*(.*)", re.DOTALL)
_LOOKALIKES = str.maketrans({"O": "0", "o": "0", "l": "1", "I": "1"})
_DTYPE_FACT = re.compile(r"(?:parts\.[^.]+\.)*dtype\.")
_MAX_TEXT = 256
_NUMBERS = 'write 64, "<=64", "64..512" or "%16"'
#: Facts whose values are element types, which people spell in several ways.
_ELEMENT_TYPES = ("quant.weight", "quant.activation", "quant.scale_dtype")


def declared(name: str, vocabulary: Vocabulary | None) -> FactSpec | None:
    """The declaration of ``name``; without a vocabulary the core's, or what its prefix implies."""
    if vocabulary is None and name.startswith("shape."):
        return FactSpec(name, FactKind.NUMBER, "", minimum=1)
    if vocabulary is None and name.startswith("dtype."):
        return FactSpec(name, FactKind.NAME, "")
    spec = (vocabulary or _CORE).find(name)
    if spec is None and name.startswith("parts.") and name.count(".") > 1:
        return declared(name.split(".", 2)[2], vocabulary)  # parts.<part>.<fact of the part's op>
    return spec


def kind_by_value(value: object) -> FactKind:
    """The kind of a fact that nothing declares, from the value that it is compared with."""
    if isinstance(value, bool):
        return FactKind.FLAG
    if is_number(value):
        return FactKind.NUMBER
    text = str(value).strip()
    comparison = text.startswith(("<", ">", "%", "=", "!"))
    return FactKind.NUMBER if comparison or _NUMBER_RE.fullmatch(text) or _RANGE_RE.fullmatch(text) else FactKind.NAME


def parse_value(fact: str, spec: FactSpec, value: object, ops: Mapping[str, str] | None) -> Predicate:
    """The literal, or conjunction of literals, that one scalar asks of ``fact``.

    Raises:
        PredicateError: the value does not fit the kind. Its path is empty; the caller knows it.
    """
    if not isinstance(value, (bool, int, float, str)):
        raise _error(
            value, f"{fact} cannot be compared with a {type(value).__name__}", "write one value, or a flat list"
        )
    if isinstance(value, str):
        value = value.strip()
        if not value or len(value) > _MAX_TEXT:
            raise _error(
                value, f"the value of {fact} must have between 1 and {_MAX_TEXT} characters", "null asks for absence"
            )
        if value == "*":
            return Present(fact)
    if spec.kind is FactKind.FLAG:
        return _flag(fact, value)
    if spec.kind is FactKind.NAME:
        return _name(fact, spec, value, ops)
    if spec.kind is FactKind.SET:
        return _element(fact, value)
    return all_of(*(_ordered(fact, spec.kind, term, value) for term in _terms(value)))


def _error(value: object, message: str, suggestion: str | None = None) -> PredicateError:
    return PredicateError(message, value=value, suggestion=suggestion)


def _flag(fact: str, value: bool | int | float | str) -> Predicate:
    if isinstance(value, bool):
        return OneOf(fact, FactKind.FLAG, (value,))
    word = str(value).lower()
    meant = "true" if word in ("true", "yes", "on", "1") else "false" if word in ("false", "no", "off", "0") else None
    hint = f"write {meant}" + (" without quotes" if word == meant else "") if meant else None
    raise _error(value, f"{fact} is a flag, not {value!r}", hint or "write true or false")


def _name(fact: str, spec: FactSpec, value: bool | int | float | str, ops: Mapping[str, str] | None) -> Predicate:
    if isinstance(value, (bool, float)):
        raise _error(value, f"{fact} is a name, not {value!r}", "put quotes around it")
    text = str(value)
    if text.startswith(("<", ">", "=", "%", "!", "~")):
        raise _error(value, f"{fact} is a name and has no order or multiples; give names, a list or a glob")
    dtype = _DTYPE_FACT.match(fact) is not None
    allowed: tuple[str, ...] | None = spec.values
    if dtype:
        allowed = (*DTYPES, *(v for v in spec.values or () if v not in DTYPES))
    elif fact == "op" and ops is not None:
        allowed = tuple(ops)
    if is_glob(text):
        compile_glob(text)
        glob = Glob(fact, text)
        if allowed is not None and not any(glob.test(v) for v in allowed):
            raise _error(value, f"no value of {fact} matches {text!r}; {_some(spec, allowed, ops)}")
        return glob
    if dtype or fact in _ELEMENT_TYPES:
        text = canonical_dtype(text)
    if allowed is not None and text not in allowed:
        hint = did_you_mean(text, allowed, cutoff=0.7)
        raise _error(value, f"{fact} has no value {text!r}; {_some(spec, allowed, ops)}", hint)
    return OneOf(fact, FactKind.NAME, (ops[text] if fact == "op" and ops is not None else text,))


def _some(spec: FactSpec, allowed: Iterable[str], ops: Mapping[str, str] | None) -> str:
    """The values of a name; of an op its own names only."""
    allowed = list(dict.fromkeys(ops.values() if spec.name == "op" and ops else allowed))
    return "it is one of " + ", ".join(allowed[:16]) + (", …" if len(allowed) > 16 else "")


def _element(fact: str, value: bool | int | float | str) -> Predicate:
    if not isinstance(value, str) or is_glob(value):
        raise _error(value, f"{fact} is a set of names; ask for one of its elements, or for any of a list")
    return Contains(fact, (value,))


def _terms(value: bool | int | float | str) -> list[object]:
    """The comparisons of one value: text may join several by commas, all of which must hold."""
    return [term.strip() for term in value.split(",")] if isinstance(value, str) else [value]


def _ordered(fact: str, kind: FactKind, term: object, value: object) -> Predicate:
    if kind is FactKind.NUMBER:
        return _number(fact, term, value)
    if not isinstance(term, str) and not (kind is FactKind.VERSION and type(term) is int):
        meant = _arch_named(str(term)) if kind is FactKind.ARCH else f'"{term}"'
        raise _error(value, f"{fact} is {NOUNS[kind]}, not {term!r}", f"write {meant or 'for example sm90'}")
    found = _ORDER_RE.fullmatch(str(term))
    order, bound = (found[1], found[2]) if found else ("==", str(term))
    return _version(fact, order, bound, value) if kind is FactKind.VERSION else _arch(fact, order, bound, value)


def _number(fact: str, term: object, value: object) -> Predicate:
    if isinstance(term, bool):
        raise _error(value, f"{fact} is a number, not {'true' if term else 'false'}", _NUMBERS)
    if isinstance(term, int | float):
        if not math.isfinite(term):
            raise _error(value, f"{fact} is a finite number, not {term}", _NUMBERS)
        return OneOf(fact, FactKind.NUMBER, (term,))
    assert isinstance(term, str)
    if term.startswith("%"):
        modulus = _as_number(fact, term[1:].strip(), value)
        if modulus < 1 or int(modulus) != modulus:
            raise _error(value, f"{fact} can be a multiple of a positive integer, not of {modulus}", "for example %16")
        return MultipleOf(fact, int(modulus))
    if ".." in term:
        low, _, high = (part.strip() for part in term.partition(".."))
        first, last = _as_number(fact, low, value), _as_number(fact, high, value)
        if first > last:
            raise _error(value, f"the range {term} of {fact} is empty", f"did you mean `{high}..{low}`?")
        return all_of(Compare(fact, FactKind.NUMBER, ">=", first), Compare(fact, FactKind.NUMBER, "<=", last))
    found = _ORDER_RE.fullmatch(term)
    order, bound = (
        (found[1], _as_number(fact, found[2].strip(), value)) if found else ("==", _as_number(fact, term, value))
    )
    if order == "~=":
        raise _error(value, f"{fact} is a number, and ~= compares versions", _NUMBERS)
    if order in ("==", "!="):
        return OneOf(fact, FactKind.NUMBER, (bound,), negated=order == "!=")
    return Compare(fact, FactKind.NUMBER, order, bound)


def _as_number(fact: str, text: str, value: object) -> int | float:
    if not _NUMBER_RE.fullmatch(text):
        raise _error(value, f"{fact} is a number: {text!r} is none; {_NUMBERS}", _repaired(str(value)))
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _error(value, f"{text} is out of range", "write a smaller number")
    return int(text) if text.lstrip("+-").isdigit() else int(number) if number.is_integer() else number


def _repaired(text: str) -> str | None:
    """What was probably meant by a comparison that does not parse."""
    for wrong, right in ((r"=<(.*)", r"<=\1"), (r"=>(.*)", r">=\1"), (r"(\d+)\s*-\s*(\d+)", r"\1..\2")):
        if re.fullmatch(wrong, text):
            return f"did you mean `{re.sub(wrong, right, text)}`?"
    digits = text.translate(_LOOKALIKES)
    return f"did you mean `{digits}`?" if digits != text and re.search(r"\d", text) else None


def _arch(fact: str, order: str, bound: str, value: object) -> Predicate:
    name = bound.strip().lower().replace("_", "")
    if arch_key(name) is None:
        meant = _arch_named(bound.strip())
        hint = f"did you mean `{meant}`?" if meant else did_you_mean(name, KNOWN_ARCHS)
        raise _error(value, f"{bound.strip()!r} is no architecture; write sm75 … sm121 or gfx942", hint)
    if order == "~=":
        raise _error(value, f"{fact} is an architecture, and ~= compares versions", "write >=sm90")
    if order in ("==", "!="):
        return OneOf(fact, FactKind.ARCH, (name,), negated=order == "!=")
    return Compare(fact, FactKind.ARCH, order, name)


def _arch_named(text: str) -> str | None:
    """The architecture that is probably meant: sm9O, sm90a, 90 and 9.0 are sm90."""
    head = re.match(r"(?:sm|gfx)?", text.lower())
    assert head is not None
    tail = text[head.end() :].translate(_LOOKALIKES).lower().replace(".", "").replace("_", "")
    return next((a for a in (f"{head[0]}{tail}", f"sm{tail}", f"sm{tail[:-1]}") if a in KNOWN_ARCHS), None)


def _version(fact: str, order: str, bound: str, value: object) -> Predicate:
    text = bound.strip()
    prefix = text.endswith(".*") and order in ("==", "!=")
    parsed = public_version(text[:-2] if prefix else text)
    if parsed is None:
        raise _error(value, f'{text!r} is no version; write ">=0.7", "0.7.*" or ">=0.7,<0.9"', _repaired(str(value)))
    if not prefix and order != "~=":
        negated = order == "!="
        return Compare(fact, FactKind.VERSION, "==" if negated else order, str(parsed), negated=negated)
    release = parsed.release if prefix else parsed.release[:-1]
    if not release or (prefix and str(parsed) != parsed.base_version):
        raise _error(value, f"{order}{text} is no range of versions; write ~=0.7 or ==0.7.*")
    epoch = f"{parsed.epoch}!" if parsed.epoch else ""
    last = ".".join(map(str, (*release[:-1], release[-1] + 1)))
    first = f"{epoch}{'.'.join(map(str, release))}.dev0" if prefix else str(parsed)
    both = all_of(Compare(fact, FactKind.VERSION, ">=", first), Compare(fact, FactKind.VERSION, "<", f"{epoch}{last}"))
    return both.negate() if order == "!=" else both
