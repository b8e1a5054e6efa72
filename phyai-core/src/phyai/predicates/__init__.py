"""One algebra of conditions on facts, for what kernels can do and for what policies match.

>>> from phyai.predicates import match
>>> p = match({"shape.K": "%16", "dtype.x": ["bf16", "fp16"], "dtype.mask": None})
>>> p.holds({"shape.K": 64, "dtype.x": "bf16"})
True
>>> p.why_not({"shape.K": 100, "dtype.x": "bf16", "dtype.mask": "bool"})
'shape.K=100 is not a multiple of 16; dtype.mask=bool is present, must be absent'
"""

from phyai.predicates._algebra import FALSE, TRUE, AllOf, AnyOf, Literal, Predicate, all_of, any_of, conjuncts, none_of
from phyai.predicates._errors import PredicateError, PredicateErrors
from phyai.predicates._intersect import Witness, intersect
from phyai.predicates._literals import Compare, Contains, Glob, MultipleOf, OneOf, Present
from phyai.predicates._order import arch_key
from phyai.predicates._parse import match
from phyai.predicates._partition import MemoKey, Partition
from phyai.predicates._signature import IMPLICATIONS, Implication, Signature

__all__ = [
    "FALSE",
    "IMPLICATIONS",
    "TRUE",
    "AllOf",
    "AnyOf",
    "Compare",
    "Contains",
    "Glob",
    "Implication",
    "Literal",
    "MemoKey",
    "MultipleOf",
    "OneOf",
    "Partition",
    "Predicate",
    "PredicateError",
    "PredicateErrors",
    "Present",
    "Signature",
    "Witness",
    "all_of",
    "any_of",
    "arch_key",
    "conjuncts",
    "intersect",
    "match",
    "none_of",
]
