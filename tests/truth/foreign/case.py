"""A case is data: how to make the input, what to ask meshscope, and the right answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.truth.foreign.place import PROJECT

Answer = float | str | None
"""A number in the unit that the check names, words, or nothing where no answer was given."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command wrote: its exit status, all text, and the JSON of ``--format json``."""

    status: int
    text: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class Check:
    """One right answer.

    Attributes:
        what: What is asked, with its unit.
        right: A number or words.
        read: Finds our answer in the reply; what it does not find is no answer.
        within: How far a number may be off.
    """

    what: str
    right: float | str
    read: Callable[[Reply], Answer]
    within: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """One input.

    Attributes:
        name: Unique; the folder it is run in.
        group: The part of the table.
        command: Arguments of ``meshscope``.
        checks: All right answers.
        before: What makes the input in the folder of the case: commands, or functions of that
            folder. A command that ends in an error is no failure: jobs that hang are among them.
        variables: Environment of ``before``.
    """

    name: str
    group: str
    command: tuple[str, ...]
    checks: tuple[Check, ...]
    before: tuple[tuple[str, ...] | Callable[[Path], object], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Our answer to a check, or None."""

    case: Case
    check: Check
    answer: Answer

    @property
    def off(self) -> float | None:
        """Return our number less the right one; None where one of them is no number."""
        if isinstance(self.answer, str | None) or isinstance(self.check.right, str):
            return None
        return self.answer - self.check.right

    @property
    def holds(self) -> bool:
        """Return whether the answer is right."""
        if self.off is not None:
            return abs(self.off) <= self.check.within + 1e-9
        return self.answer == self.check.right


LIMIT_S = 300.0
"""No command of a case may take longer."""


def judge(case: Case, scratch: Path) -> list[Outcome]:
    """Make the input, ask, and return our answer to every check."""
    folder = scratch / case.name
    folder.mkdir(parents=True, exist_ok=True)
    for make in case.before:
        make(folder) if callable(make) else _run(make, folder, case.variables)
    reply = ask(case.command, folder)
    return [Outcome(case, check, _read(check, reply)) for check in case.checks]


def ask(arguments: tuple[str, ...], folder: Path) -> Reply:
    """Run ``meshscope`` as a user does, in a folder."""
    done = _run((sys.executable, "-m", "meshscope", *arguments), folder, {})
    text = done.stdout + done.stderr
    try:
        return Reply(done.returncode, text, json.loads(done.stdout))
    except ValueError:
        return Reply(done.returncode, text)


def _run(
    command: tuple[str, ...], folder: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(PROJECT / "src"), os.environ.get("PYTHONPATH"))))
    own = {"MESHSCOPE_RUNS": str(folder / "runs"), "PYTHONPATH": path}
    environment = {**os.environ, **own, **variables}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", f"no answer in {LIMIT_S:.0f} s")


def _read(check: Check, reply: Reply) -> Answer:
    try:
        return check.read(reply)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
