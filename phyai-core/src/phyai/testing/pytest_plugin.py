"""pytest: ``--phyai-backend NAME`` collects one test per kernel and check, beside whatever else is collected.

::

    pytest --phyai-backend mine --phyai-seconds 60 tests/

Installed with ``phyai-core``; without the option it does nothing, and imports neither torch nor hypothesis.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from phyai.testing.report import CheckReport, SubjectReport


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("phyai", "conformance of PhyAI backends")
    group.addoption(
        "--phyai-backend", action="append", metavar="NAME", help="test the kernels of this backend; repeatable"
    )
    group.addoption("--phyai-seconds", type=float, default=60.0, help="about how long for each backend (default: 60)")
    group.addoption("--phyai-device", default="auto", help="auto, cpu, cuda or cuda:<index> (default: auto)")
    group.addoption("--phyai-seed", type=int, default=0, help="what the drawn calls follow from (default: 0)")


def pytest_collection(session: pytest.Session) -> None:
    """Let the backends be collected after the files: their collectors hang below the session."""
    names: list[str] | None = session.config.getoption("phyai_backend")
    if names:
        session.config.pluginmanager.register(_Backends(session, names), "phyai-backends")


class _Backends:
    """Adds the tests of the backends to what was collected."""

    def __init__(self, session: pytest.Session, names: list[str]) -> None:
        self._session = session
        self._names = names

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for name in self._names:
            backend = BackendCollector.from_parent(self._session, name=f"phyai:{name}", path=Path(self._session.path))
            for kernel in backend.collect():
                items.extend(kernel.collect())


class BackendCollector(pytest.Collector):
    """A backend: what it declares, as one collector each."""

    def collect(self) -> Iterator[SubjectCollector]:
        from phyai.environment import Environment
        from phyai.plugins import discover
        from phyai.testing.conformance import formats_of, kernels_of, plugins_of, require_tools

        backend = self.name.removeprefix("phyai:")
        require_tools()
        catalog = discover()
        environment = Environment.detect(self.config.getoption("phyai_device"), libraries=catalog.libraries)
        kernels, formats = kernels_of(backend, catalog), formats_of(backend, catalog)
        if not kernels and not formats:
            raise pytest.UsageError(f"--phyai-backend {backend}: no such backend is installed; see `phyai backends`")
        todo: list[Any] = [*plugins_of(kernels, catalog), *formats, *kernels]
        seconds = self.config.getoption("phyai_seconds") / len(todo)
        for record in todo:
            name = getattr(record, "id", None) or record.name
            subject = SubjectCollector.from_parent(self, name=name, path=self.path)
            subject.prepare(record, backend, catalog, environment, seconds, self.config.getoption("phyai_seed"))
            yield subject


class SubjectCollector(pytest.Collector):
    """A kernel, a quantization format or a plug-in: one test per check, all from one examination."""

    _report: SubjectReport | None = None

    def prepare(self, record: Any, backend: str, catalog: Any, environment: Any, seconds: float, seed: int) -> None:
        self._given = (record, backend, catalog, environment, seconds, seed)

    def collect(self) -> Iterator[CheckItem]:
        from phyai.kernel import Kernel
        from phyai.plugins.records import PluginStatus
        from phyai.testing.checks import CHECKS
        from phyai.testing.conformance import DECLARATION, PACKER

        record = self._given[0]
        if isinstance(record, Kernel):
            names = [check.name for check in CHECKS]
        else:
            names = [DECLARATION if isinstance(record, PluginStatus) else PACKER]
        for name in names:
            yield CheckItem.from_parent(self, name=name)

    def report(self) -> SubjectReport:
        """What examining it found; examined once, when the first of its tests runs."""
        if self._report is None:
            from phyai.testing.conformance import examine_record

            record, backend, catalog, environment, seconds, seed = self._given
            self._report = examine_record(record, backend, catalog, environment, seconds=seconds, seed=seed)
        return self._report


class CheckItem(pytest.Item):
    """One check of one kernel."""

    parent: SubjectCollector

    def runtest(self) -> None:
        report = self.parent.report()
        found = {check.name: check for check in report.checks}
        if self.name in found:
            self._settle(found[self.name])
        elif report.checks:  # nothing was exercised: the one check that is there says so
            self._settle(report.checks[0])
        else:
            pytest.skip(report.reason)

    def _settle(self, check: CheckReport) -> None:
        from phyai.testing.report import Outcome

        if check.outcome is Outcome.SKIPPED:
            pytest.skip(check.reason)
        if check.outcome is Outcome.FAILED:
            pytest.fail(f"{check.reason}\n{check.line}".rstrip(), pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.parent.name}: {self.name}"
