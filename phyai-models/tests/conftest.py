"""Helpers beside the tests are imported by name; one catalog serves all tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def catalog():
    from phyai.plugins import discover

    return discover({})
