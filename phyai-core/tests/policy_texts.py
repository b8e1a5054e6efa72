"""Policies as text, loaded over a small catalog, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from phyai.errors import PolicyError
from phyai.policy import parse_policy
from policy_catalogs import small_catalog

CASES = Path(__file__).parent / "data" / "policies"


def load(text):
    return parse_policy(text, file="p.yaml", catalog=small_catalog())


def refused(text):
    with pytest.raises(PolicyError) as caught:
        load(text)
    assert str(caught.value).startswith("p.yaml: ")
    return [str(problem) for problem in caught.value.problems]


def only(text):
    (problem,) = refused(text)
    return problem


def rules(*lines):
    return "schema: phyai.kernel/v1\nrules:\n" + "".join(f"  - {line}\n" for line in lines)
