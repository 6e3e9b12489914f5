"""The account of a window of steps, of all ranks: what one worker makes of it, and the file that is kept.

Every member of an operation lies in the same window, so waiting is separated from transfer there, and the causes are
replayed: nothing of another window is needed. Only sums go on from here, so that the account of a run takes no more memory
than that of its largest window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import FILE_MODE

from ..align.topology.file import load_topology
from ..align.topology.stated import apply_topology
from ..findings.comparison import finding_key
from ..findings.diagnosis import diagnose
from ..findings.ordered import is_by_design
from ..findings.rules.grading import SEVERITIES
from ..load.load import load_trace
from ..tables.part import StepRange, of_steps
from ..tables.results import Cause, Diagnosis, Finding
from ..tables.table_folder import drafted
from ..tables.unused_memory import release_unused
from ..wording.message import message_to_json

FOLDER = "accounts"
"""The folder beside the summaries of a run."""
ACCOUNT_VERSION = 1
"""Rises with every change of what a file says, so that older ones are made anew."""
_ROOM = 1.5
"""Records that have room, as a multiple of those that were counted: a reader counts some more of a recorded rank."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A class of the ledger, a cause, or a finding of a window: what it takes of its mean step, ns."""

    kind: str
    where: dict[str, Any] = {}
    cost_ns: float | None
    """None where it is not known."""
    gain_ns: float | None = None
    """What fixing it alone returns; None where it is not known, or has no meaning."""
    key: str = ""
    """What findings about the same thing share, in every window."""
    place: tuple[int, bool] = (0, False)
    """Of a finding: its severity, 0 the highest, and whether it tells how the job is made, not what is broken."""
    claim: dict[str, Any] | None = None
    """The sentence of a finding, as ``message_to_json`` gives it."""


class WindowAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What a window of steps adds to the account of a run; times are means per step."""

    first: int
    last: int
    steps: int
    """How many were analysed; 0 where none could be."""
    step_ns: float = 0.0
    classes: tuple[Part, ...] = ()
    causes: tuple[Part, ...] = ()
    findings: tuple[Part, ...] = ()
    mfu: float | None = None
    mfu_unknown: dict[str, Any] | None = None
    """Why it is not known."""
    limits: tuple[dict[str, Any], ...] = ()
    unknown_causes: tuple[dict[str, Any], ...] = ()
    """Why no causes are known; empty where they are."""
    failed: str = ""
    """Why the window could not be analysed; empty where it was."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A window of steps of a run, and where its account goes."""

    run: Path
    folder: Path
    steps: StepRange
    rows: int
    """Records of these steps, of all ranks."""
    source: str
    """Names what the run holds: an account of something else is not taken."""
    topology: Path | None = None
    """A topology file that is applied."""

    def __str__(self) -> str:
        """Return what an error names."""
        return f"{self.run}, steps {self.steps.text}"

    @property
    def file(self) -> Path:
        """Return where the account is kept."""
        stated = b"" if self.topology is None else self.topology.read_bytes()
        made_of = f"{ACCOUNT_VERSION} {self.source} {hashlib.sha256(stated).hexdigest()}"
        digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        return self.folder / f"{self.steps.first}-{self.steps.last}.{digest}.json"


def account_of(window: Window) -> WindowAccount:
    """Return the account of a window; one that is kept is taken.

    A window that cannot be analysed says why: it does not take the others with it.

    Raises:
        OSError: The account cannot be written.
    """
    file = window.file
    if (kept := _kept(file)) is not None:
        return kept
    try:
        made = _summed(diagnose(_trace_of(window)), window.steps)
    except MeshscopeError as error:
        made = WindowAccount(
            first=window.steps.first, last=window.steps.last, steps=0, failed=str(error)
        )
    release_unused()
    with drafted(file.parent) as draft:
        (draft / file.name).write_bytes(msgspec.json.encode(made))
        (draft / file.name).chmod(FILE_MODE)
        (draft / file.name).replace(file)
    return made


def _kept(file: Path) -> WindowAccount | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=WindowAccount)
    except (OSError, msgspec.MsgspecError):
        return None


def _trace_of(window: Window) -> Any:
    # More room would have the reader keep other steps, too.
    room = int(window.rows * _ROOM)
    trace = load_trace(window.run, wanted=Wanted(steps=window.steps, most_rows=room))
    if window.topology is not None:
        trace = apply_topology(trace, load_topology(window.topology))
    return of_steps(trace, window.steps)


def _summed(found: Diagnosis, steps: StepRange) -> WindowAccount:
    """Return what of a diagnosis goes on."""
    count = found.run["steps"]
    length = found.step_time_ns
    return WindowAccount(
        first=steps.first,
        last=steps.last,
        steps=count if isinstance(count, int) else 0,
        step_ns=length,
        classes=tuple(Part(kind=bar.name, cost_ns=bar.dur_ns) for bar in found.waterfall),
        causes=tuple(_cause(one, length) for one in found.causes),
        findings=tuple(_finding(one, length) for one in found.findings),
        mfu=found.utilization.mfu,
        mfu_unknown=message_to_json(found.utilization.unknown_because),
        limits=_as_json(one for one in found.limits if one not in found.unknown_causes),
        unknown_causes=_as_json(found.unknown_causes),
    )


def _cause(cause: Cause, step_ns: float) -> Part:
    return Part(
        kind=cause.kind,
        where=dict(cause.where),
        cost_ns=cause.share_frac * step_ns,
        gain_ns=cause.removal_gain_frac * step_ns,
        key=_place_key(cause.where),
    )


def _finding(finding: Finding, step_ns: float) -> Part:
    cost, gain = finding.cost_frac, finding.returns_frac
    return Part(
        kind=finding.kind.value,
        where=dict(finding.where),
        cost_ns=None if cost is None else cost * step_ns,
        gain_ns=None if gain is None else gain * step_ns,
        key=finding_key(finding)[1],
        place=(SEVERITIES.index(finding.severity), is_by_design(finding)),
        claim=message_to_json(finding.claim),
    )


def _place_key(where: Mapping[str, Any]) -> str:
    """Return what causes at the same place share, in whatever steps they are."""
    return str(sorted((key, value) for key, value in where.items() if key != "steps"))


def _as_json(texts: Any) -> tuple[dict[str, Any], ...]:
    return tuple(said for text in texts if (said := message_to_json(text)) is not None)
