"""A tree of YAML nodes as a policy: every key, type and name checked, every problem reported."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from phyai.catalog import Catalog
from phyai.facts import DTYPES, canonical_dtype
from phyai.policy import _earlier
from phyai.policy._kernels import Kernels
from phyai.policy._match import Match, Matches
from phyai.policy._model import (
    FALLBACKS,
    PROFILES,
    SCHEMA,
    Defaults,
    Layer,
    Location,
    NumericsDemand,
    Policy,
    Restriction,
    Rule,
    is_glob,
)
from phyai.policy._node import Node
from phyai.policy._problems import Report, one_of
from phyai.policy._quantization import read_quantization
from phyai.predicates import TRUE

_TOP = ("schema", "profile", "defaults", "quantization", "rules", "overrides")
_DEFAULTS = ("fallback", "numerics", "ties")
_BESIDE = ("id", "priority", "match", "params", "numerics", "fallback")
_DOES = {Layer.USER: ("prefer", "restrict_to", "pin"), Layer.OVERRIDE: ("use", "pin", "restrict_to")}
_NUMERICS = ("any", "reproducible", "batch_invariant")
_MAX_PRIORITY = 10**9


class Checker:
    """Reads one file. Problems go to the report; what is returned leaves out what was wrong."""

    def __init__(self, catalog: Catalog, report: Report, file: str, layer: Layer = Layer.USER) -> None:
        self._report = report
        self._file = file
        self._layer = layer
        self._catalog = catalog
        self._kernels = Kernels(catalog, report, file)
        self._matches = Matches(catalog, report, file)
        self._ids: dict[str, Location] = {}
        #: Ids of the rules of which a warning already says that they may match no call.
        self.doubtful: set[str] = set()

    def policy(self, root: Node) -> Policy:
        if not root.is_map:
            what = "the file says nothing" if root.value is None else "a policy file is a mapping"
            self._error(root, what, f"begin with `schema: {SCHEMA}`")
            return Policy(source=self._file)
        sections = self._known(root, _TOP)
        self._schema(root, sections.get("schema"))
        quantization = sections.get("quantization")
        policy = Policy(
            rules=(
                *self._rules(sections.get("rules"), self._layer),
                *self._rules(sections.get("overrides"), Layer.OVERRIDE),
            ),
            defaults=self._defaults(sections.get("defaults")),
            profile=self._choice(sections.get("profile"), "profile", PROFILES),
            quantization=None
            if quantization is None
            else read_quantization(quantization, self._catalog, self._report, self._file),
            source=self._file,
        )
        if policy.relaxes_restrictions:
            self._relaxing(policy, sections["defaults"].value["fallback"])
        return policy

    def _relaxing(self, policy: Policy, said: Node) -> None:
        """Tell that ``fallback: reference`` does more than its name says, where it does."""
        relaxed = [r.id for r in policy.rules if r.restriction and not r.restriction.pin and not r.fallback]
        if relaxed:
            named = ", ".join(f"`{id}`" for id in relaxed[:4]) + (", …" if len(relaxed) > 4 else "")
            what = "it also relaxes restrictions: a reference kernel runs where one of these rules leaves nothing"
            advice = "`warn` or `error` keeps restrictions strict"
            self._report.warn(self._at(said), f"{what}: {named}", f"fallback: {said.text}", advice)

    def _schema(self, root: Node, node: Node | None) -> None:
        if node is None:
            self._report.warn(self._at(root), f"no schema; read as {SCHEMA}", None, f"add `schema: {SCHEMA}`")
        elif node.is_map or node.is_list or node.text not in _earlier.SCHEMAS:
            self._error(node, "a schema that this version does not read", f"it reads `{SCHEMA}`")

    def _defaults(self, node: Node | None) -> Defaults:
        if node is None or node.value is None or not self._mapping(node, "defaults"):
            return Defaults()
        given = self._known(node, _DEFAULTS)
        fallback = self._choice(given.get("fallback"), "fallback", FALLBACKS)
        return Defaults(fallback, self._numerics(given.get("numerics")), self._ties(given.get("ties")))

    def _ties(self, node: Node | None) -> tuple[str, ...]:
        if node is None:
            return ()
        items = node.value if node.is_list else (node,)
        names = tuple(item.value for item in items)
        if not all(isinstance(name, str) and name.isidentifier() for name in names):
            self._error(node, "`ties` is a list of backends, most preferred first", "for example [cuda, torch]")
            return ()
        for item in items:
            self._kernels.check_backend(item)
        return tuple(dict.fromkeys(names))

    def _rules(self, node: Node | None, layer: Layer) -> list[Rule]:
        section = "overrides" if layer is Layer.OVERRIDE else "rules"
        if node is None or node.value is None:
            return []
        if not node.is_list:
            self._error(node, f"`{section}` is a list of rules", "write each as `- id: …`")
            return []
        read = [self._rule(item, f"{section}[{i}]", layer) for i, item in enumerate(node.value)]
        return [rule for rule in read if rule is not None]

    def _rule(self, node: Node, name: str, layer: Layer) -> Rule | None:
        if not self._mapping(node, "a rule"):
            return None
        before = len(self._report.errors)
        does = _DOES[Layer.OVERRIDE if layer is Layer.OVERRIDE else Layer.USER]
        given = self._known(node, (*_BESIDE, *does))
        typos = len(given) < len(node.value)
        id = self._id(node, given.get("id"), name)
        priority = self._priority(given.get("priority"))
        match = self._matches.read(given["match"]) if "match" in given else Match(TRUE, None)
        verbs = [verb for verb in does if verb in given]
        if len(verbs) > 1:
            self._error_at(node.keys[verbs[1]], "a rule has one effect", ", ".join(verbs), "make two rules of it")
        elif (
            not verbs and not typos and (layer is Layer.OVERRIDE or not {"params", "numerics", "fallback"} & set(given))
        ):
            wanted = "`use` or `restrict_to`" if layer is Layer.OVERRIDE else "`prefer`, `restrict_to` or `pin`"
            what = "an override" if layer is Layer.OVERRIDE else "a rule"
            self._error_at((node.line, node.column), f"{what} without effect", id, f"give it {wanted}")
        restriction, prefer = self._effect(given, verbs[0] if verbs else None)
        patterns = restriction.kernels if restriction else prefer
        ops = match.ops if match else None
        if verbs:
            self._reach(given[verbs[0]], patterns, ops, strict=verbs != ["prefer"])
        rule_params = given.get("params")
        params = self._kernels.params(rule_params, patterns, ops) if rule_params is not None else {}
        fallback = self._fallback(given["fallback"]) if "fallback" in given else ()
        if fallback:
            self._reach(given["fallback"], fallback, ops, strict=True)
        numerics = self._numerics(given.get("numerics"))
        if len(self._report.errors) > before or match is None:
            return None
        if match.doubtful:
            self.doubtful.add(id)
        where = self._at(node)
        return Rule(id, match.predicate, priority, restriction, prefer, params, numerics, fallback, layer, where)

    def _id(self, node: Node, given: Node | None, name: str) -> str:
        if given is None:
            return name
        if given.is_map or given.is_list or given.value is None:
            self._error(given, "an id is text", "for example `id: vision-on-torch`")
            return name
        if given.text in self._ids:
            first = self._ids[given.text]
            self._error(given, f"an id that line {first.line} has already", "ids are unique in a file")
        self._ids.setdefault(given.text, self._at(given))
        return given.text

    def _priority(self, node: Node | None) -> int:
        if node is None:
            return 0
        if isinstance(node.value, bool) or not isinstance(node.value, int) or abs(node.value) > _MAX_PRIORITY:
            self._error(node, "a priority is a whole number", "for example 10; higher wins")
            return 0
        return node.value

    def _effect(self, given: Mapping[str, Node], verb: str | None) -> tuple[Restriction | None, tuple[str, ...]]:
        if verb is None:
            return None, ()
        node = given[verb]
        if verb == "prefer":
            return None, self._kernels.read(node, verb, strict=False)
        kernels = self._kernels.read(node, verb, strict=True)
        if verb == "restrict_to":
            return Restriction(kernels), ()
        if len(kernels) > 1 or any(is_glob(kernel) for kernel in kernels):
            self._error(node, f"`{verb}` takes one id", "write `restrict_to` for several kernels or a glob")
        return Restriction(kernels, pin=True), ()

    def _fallback(self, node: Node) -> tuple[str, ...]:
        if node.text in FALLBACKS and not node.is_map and not node.is_list:
            advice = "for example `fallback: reference.*`; `error`, `warn` and `reference` belong to `defaults`"
            self._error(node, "the fallback of a rule names kernels", advice)
            return ()
        return self._kernels.read(node, "fallback", strict=True)

    def _reach(self, node: Node, patterns: tuple[str, ...], ops: frozenset[str] | None, *, strict: bool) -> None:
        """Complain where the kernels that a rule names implement none of the ops that it matches."""
        named = [self._kernels.named_by(pattern) for pattern in patterns]
        if ops is None or not named or not all(named):
            return  # some kernel is unknown here, and has been spoken of
        reached = self._with_parts(ops)
        if not any(kernel.op in reached for kernels in named for kernel in kernels):
            report = self._report.error if strict else self._report.warn
            message = f"none of these kernels computes {', '.join(sorted(ops)) or 'an op that this rule matches'}"
            hint = f"`phyai kernels --op {min(ops)}` lists those that do" if ops else "match an op that they compute"
            report(self._at(node), message, node.shown(), hint)

    def _with_parts(self, ops: frozenset[str]) -> frozenset[str]:
        """``ops`` and the ops of their parts: a kernel of a part serves a composite op's decomposition."""
        known = [self._catalog.op(name) for name in ops if name in self._catalog.aliases]
        parts = frozenset(self._catalog.aliases.get(part.op, part.op) for op in known for part in op.parts)
        return ops if parts <= ops else self._with_parts(ops | parts)

    def _numerics(self, node: Node | None) -> NumericsDemand | None:
        if node is None:
            return None
        if node.is_map:
            given = self._known(node, ("reproducible", "batch_invariant", "accumulation"))
            flags = {name: child.value for name, child in given.items() if name != "accumulation"}
            for name, value in flags.items():
                if not isinstance(value, bool):
                    self._error(given[name], f"`{name}` is true or false", f"write `{name}: true`, without quotes")
            types = given.get("accumulation")
            accumulation = self._dtypes(types) if types is not None else ()
            return NumericsDemand(**{k: v is True for k, v in flags.items()}, accumulation=accumulation)
        words = self._texts(node, "numerics", f"one of {', '.join(_NUMERICS)}")
        for word in words:
            if word not in _NUMERICS:
                self._error(node, "no such demand on numerics", one_of(word, _NUMERICS))
        if "any" in words and len(words) > 1:
            self._error(node, "`any` asks for nothing, so it stands alone", "leave `any` out")
        return NumericsDemand("reproducible" in words, "batch_invariant" in words)

    def _dtypes(self, node: Node) -> tuple[str, ...]:
        given = self._texts(node, "accumulation", "a dtype or a list of them")
        found = tuple(canonical_dtype(dtype) for dtype in given)
        for dtype in found:
            if dtype not in DTYPES:
                self._error(node, "no such dtype", one_of(dtype, DTYPES))
        return found

    def _texts(self, node: Node, what: str, form: str) -> tuple[str, ...]:
        items = node.value if node.is_list else (node,)
        if not items or not all(isinstance(item.value, str) for item in items):
            self._error(node, f"`{what}` is {form}", "names are text")
            return ()
        return tuple(item.value for item in items)

    def _choice(self, node: Node | None, what: str, allowed: Collection[str]) -> str | None:
        if node is None:
            return None
        if node.is_map or node.is_list or node.text not in allowed:
            self._error(node, f"no such {what}", one_of(node.text, allowed))
            return None
        return node.text

    def _mapping(self, node: Node, what: str) -> bool:
        if not node.is_map:
            said = "`defaults` is a mapping" if what == "defaults" else f"{what} is a mapping"
            self._error(node, said, "for example `fallback: warn`" if what == "defaults" else "write `- id: …`")
        return node.is_map

    def _known(self, node: Node, allowed: tuple[str, ...]) -> dict[str, Node]:
        for key in node.value:
            if key not in allowed:
                hint = one_of(key, allowed)
                if key in ("use", "pin", "prefer"):
                    hint = {"use": "write `pin`", "prefer": "a rule can prefer, an override decides"}.get(key, hint)
                self._error_at(node.keys[key], "unknown key", key, hint)
        return {key: child for key, child in node.value.items() if key in allowed}

    def _at(self, node: Node) -> Location:
        return Location(self._file, node.line, node.column)

    def _error(self, node: Node, message: str, suggestion: str | None = None) -> None:
        self._report.error(self._at(node), message, node.shown(), suggestion)

    def _error_at(self, at: tuple[int, int], message: str, got: str, suggestion: str | None = None) -> None:
        self._report.error(Location(self._file, *at), message, got or '""', suggestion)
