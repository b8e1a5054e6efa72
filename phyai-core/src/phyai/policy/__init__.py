"""The policy: what a team wants, as rules in a YAML file.

::

    loaded = load_policy("policy.yaml", catalog=catalog)   # PolicyError with every problem, or
    loaded.policy, loaded.warnings                         # the file over the shipped default policy
    aspects = loaded.policy.aspects(facts)                 # which rule settles which aspect of a call
    aspects.restriction, aspects.preference("torch.gemm.bf16"), aspects.params("torch.gemm.bf16")
"""

from phyai.policy._load import LoadedPolicy, default_policy, load_policy, parse_policy, policy_from_environment
from phyai.policy._model import (
    FALLBACKS,
    PROFILES,
    SCHEMA,
    Aspects,
    Defaults,
    Layer,
    Location,
    NumericsDemand,
    Policy,
    Restriction,
    Rule,
    is_glob,
    kernel_matches,
)
from phyai.policy._problems import Problem
from phyai.policy._write import update_rules

__all__ = [
    "FALLBACKS",
    "PROFILES",
    "SCHEMA",
    "Aspects",
    "Defaults",
    "Layer",
    "LoadedPolicy",
    "Location",
    "NumericsDemand",
    "Policy",
    "Problem",
    "Restriction",
    "Rule",
    "default_policy",
    "is_glob",
    "kernel_matches",
    "load_policy",
    "parse_policy",
    "policy_from_environment",
    "update_rules",
]
