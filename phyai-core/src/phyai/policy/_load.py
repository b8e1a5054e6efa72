"""Policy files: reading them, and what the environment says of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

import attrs

from phyai.catalog import Catalog
from phyai.errors import PolicyError
from phyai.policy._check import Checker
from phyai.policy._conflicts import find_conflicts
from phyai.policy._model import PROFILES, Layer, Location, Policy
from phyai.policy._problems import Problem, Report, TooManyProblems, one_of
from phyai.policy._yaml import MAX_BYTES, YamlProblem, read_yaml, too_large

#: The variable that names the policy file, and the one that names the profile.
CONFIG_VARIABLE = "PHYAI_KERNEL_CONFIG"
PROFILE_VARIABLE = "PHYAI_KERNEL_PROFILE"


@attrs.frozen
class LoadedPolicy:
    """A policy that was accepted, and what its reader should know of it."""

    policy: Policy
    warnings: tuple[Problem, ...] = ()


def load_policy(
    path: str | os.PathLike[str], *, catalog: Catalog | None = None, base: Policy | None = None
) -> LoadedPolicy:
    """Read a policy file.

    Args:
        path: the file.
        catalog: what the file's names are checked against; None discovers the installed plug-ins.
        base: the policy that it lies upon; None is the shipped default policy.

    Raises:
        PolicyError: with every problem of the file, each with line and column.
    """
    return parse_policy(read_file(path), file=os.fspath(path), catalog=catalog, base=base)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a policy file.

    Raises:
        PolicyError: it cannot be read, or is too large to be one.
    """
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
            size = max(len(data), os.fstat(stream.fileno()).st_size)
    except (OSError, ValueError) as error:  # a path with a NUL byte is a ValueError
        what = f"the policy file cannot be read: {getattr(error, 'strerror', None) or error}"
        hint = "give the path of a file that you may read"
        raise _refusal(Problem(Location(name, 1, 1), what, None, hint)) from None
    if size > MAX_BYTES:
        raise _refusal(too_large(name, size).problem)
    return data


def parse_policy(
    text: str | bytes,
    *,
    file: str = "<policy>",
    catalog: Catalog | None = None,
    base: Policy | None = None,
    layer: Layer = Layer.USER,
) -> LoadedPolicy:
    """Read a policy from text; ``file`` is what messages call it. Otherwise as :func:`load_policy`."""
    if catalog is None:
        from phyai.plugins import discover

        catalog = discover()
    report = Report()
    policy = Policy()
    try:
        checker = Checker(catalog, report, file, layer)
        policy = checker.policy(read_yaml(text, file))
        find_conflicts(policy.rules, checker.doubtful, catalog, report)
    except YamlProblem as error:
        report.errors.append(error.problem)
    except TooManyProblems:
        pass
    report.raise_errors()
    below = default_policy() if base is None else base
    return LoadedPolicy(policy.over(below), report.sorted_warnings())


@cache
def default_policy() -> Policy:
    """The shipped default policy: it settles ties between PhyAI's own backends, and says nothing else."""
    text = resources.files("phyai.policy").joinpath("default.yaml").read_bytes()
    return parse_policy(text, file="default.yaml", catalog=Catalog.build(), base=Policy(), layer=Layer.SHIPPED).policy


def policy_from_environment(
    environ: Mapping[str, str],
    path: str | os.PathLike[str] | None = None,
    profile: str | None = None,
    *,
    catalog: Catalog | None = None,
) -> LoadedPolicy:
    """The policy that arguments and variables ask for: an argument beats its variable.

    ``PHYAI_KERNEL_CONFIG`` names a file, ``PHYAI_KERNEL_PROFILE`` a profile. A profile from either place
    replaces that of the file and leaves every other part of the policy, quantization too, as it is.

    Raises:
        PolicyError: the file is refused, or there is no such profile.
    """
    path = path if path is not None else environ.get(CONFIG_VARIABLE) or None
    origin = "profile" if profile is not None else PROFILE_VARIABLE
    profile = profile if profile is not None else environ.get(PROFILE_VARIABLE) or None
    if profile is not None and profile not in PROFILES:
        raise PolicyError(f"{origin}={profile!r}: no such profile; {one_of(profile, PROFILES)}")
    if path is None:
        loaded = LoadedPolicy(default_policy())
    else:
        loaded = load_policy(path, catalog=catalog)
    return loaded if profile is None else attrs.evolve(loaded, policy=loaded.policy.with_profile(profile))


def _refusal(problem: Problem) -> PolicyError:
    return PolicyError(f"{problem.location.file}: 1 problem\n  {problem}", (problem,))
