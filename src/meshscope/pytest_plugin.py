"""The pytest plugin: ``mesh_run`` launches ranks under the probe, and a test asserts on what was recorded.

It does nothing until a test asks for its fixture. What is shown at the end travels in the
properties of reports, so it arrives from the workers of pytest-xdist too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshscope.probe.schema.message import message

from .mesh_job import LaunchOptions, launch
from .mesh_run import Bound, RecordedRuns

_PROPERTY = "meshscope"
_LINES = pytest.StashKey[list[tuple[str, str]]]()
_DEFAULTS = {"ranks": "2", "timeout": "120", "runs": "", "margin": ""}
_MEANINGS = {
    "ranks": "ranks that mesh_run starts where a call names none",
    "timeout": "seconds after which mesh_run ends a job",
    "runs": "folder that keeps the recorded runs; by default that of the test",
    "margin": "accepted loss of assert_no_slower_than: 0.01 is 1 %%",
}
_MOST_LINES = 200
"""A summary of more scrolls the failures away."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one option and one ini key a setting."""
    group = parser.getgroup("meshscope", "recorded training runs")
    for name, meaning in _MEANINGS.items():
        group.addoption(f"--meshscope-{name}", default=None, help=meaning)
        parser.addini(f"meshscope_{name}", meaning.replace("%%", "%"), default=_DEFAULTS[name])


def pytest_configure(config: pytest.Config) -> None:
    """Collect the lines of the summary where reports arrive."""
    config.stash[_LINES] = []
    config.pluginmanager.register(_Collector(config.stash[_LINES]), "meshscope-collector")


class _Collector:
    """Takes the lines of finished tests out of their reports."""

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        self._lines = lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test noted; its last report holds all of it."""
        if report.when == "teardown":
            self._lines += [
                (report.nodeid, str(text))
                for name, text in report.user_properties
                if name == _PROPERTY
            ]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show what was asserted of recorded runs."""
    lines = config.stash.get(_LINES, [])
    if not lines:
        return
    terminalreporter.section("meshscope")
    shown = ""
    for test, line in lines[:_MOST_LINES]:
        if test != shown:
            terminalreporter.line(test)
            shown = test
        terminalreporter.line(f"  {line}")
    if len(lines) > _MOST_LINES:
        terminalreporter.line(f"… and {len(lines) - _MOST_LINES} more lines")


class MeshRun:
    """The fixture: calling it launches a job; its assertions are about the latest one."""

    def __init__(self, options: LaunchOptions, request: pytest.FixtureRequest) -> None:
        self._options = options
        self._name = request.node.name
        self._properties = request.node.user_properties
        self._latest: RecordedRuns | None = None

    def __call__(
        self,
        *command: str | Path,
        ranks: int | None = None,
        runs: int = 1,
        topology: Path | None = None,
        cwd: Path | None = None,
    ) -> RecordedRuns:
        """Run a training script as the ranks of a job, and return what was recorded.

        Args:
            *command: Script and arguments, or ``"-m"`` and a module.
            ranks: How many; by default the setting ``meshscope_ranks``.
            runs: How often the job runs; five tell how much runs differ.
            topology: File that states the mesh, where the capture does not tell it.
            cwd: Where the job runs.

        Raises:
            AssertionError: The job fails, or does not end in time.
        """
        __tracebackhide__ = True
        options = self._options if ranks is None else replace(self._options, ranks=ranks)
        if options.ranks < 1 or runs < 1:
            raise pytest.UsageError(str(message("usage.least_ranks")))
        paths = tuple(launch(command, options, self._name, cwd) for _ in range(runs))
        for path in paths:
            self._note(f"{path.name}: {options.ranks} ranks recorded in {path.parent}")
        self._latest = RecordedRuns(paths, options.margin, topology, self._note)
        return self._latest

    def _note(self, line: str) -> None:
        self._properties.append((_PROPERTY, line))

    @property
    def latest(self) -> RecordedRuns:
        """Return what the latest call recorded.

        Raises:
            UsageError: There was no call.
        """
        if self._latest is None:
            raise pytest.UsageError(str(message("usage.nothing_launched")))
        return self._latest

    def assert_budget(self, **bounds: Bound) -> None:
        """Assert absolute bounds of the latest job; see ``RecordedRuns.assert_budget``."""
        __tracebackhide__ = True
        self.latest.assert_budget(**bounds)

    def assert_collectives(self, **axes: Mapping[str, int]) -> None:
        """Assert the collectives of a step of the latest job; see ``RecordedRuns.assert_collectives``."""
        __tracebackhide__ = True
        self.latest.assert_collectives(**axes)

    def assert_no_slower_than(
        self,
        base: RecordedRuns | Path | str,
        *,
        margin: float | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """Hold the latest job against a baseline; see ``RecordedRuns.assert_no_slower_than``."""
        __tracebackhide__ = True
        self.latest.assert_no_slower_than(base, margin=margin, allow=allow)


@pytest.fixture
def mesh_run(request: pytest.FixtureRequest, tmp_path: Path) -> MeshRun:
    """Launch training scripts under the probe, and assert on what they recorded."""
    return MeshRun(_options(request.config, tmp_path), request)


def _options(config: pytest.Config, tmp_path: Path) -> LaunchOptions:
    kept, margin = _setting(config, "runs"), _setting(config, "margin")
    return LaunchOptions(
        runs_dir=config.rootpath / kept if kept else tmp_path / "meshscope_runs",
        ranks=int(_number(config, "ranks", least=1)),
        timeout_s=_number(config, "timeout", least=1),
        margin=_number(config, "margin", least=0) if margin else None,
    )


def _setting(config: pytest.Config, name: str) -> str:
    given = config.getoption(f"--meshscope-{name}")
    return str(config.getini(f"meshscope_{name}") if given is None else given)


def _number(config: pytest.Config, name: str, *, least: float) -> float:
    text = _setting(config, name)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number < 1e9:
        raise pytest.UsageError(
            str(message("usage.plugin_number", name=name, text=text, least=least))
        )
    return number
