"""What a page shows, as the query of its URL: step, ranks, window of time and rows, place, path, metric, run, changes.

The URL is the only state. It comes from outside, so every field is checked, and
a field that makes no sense is left out and named, never passed on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlencode

from meshscope.analyze.output.timeline.categories import Category

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What can stand in an address as the name of a run."""
METRICS = ("slowdown", "own", "compute", "wait")
"""What the rank x step heatmap can show; the first is the default."""

CATEGORY_NAMES = tuple(category.name.lower() for category in Category)

_SHOWN = "1"
_MAX_DIGITS = 19
_MAX_FIELDS = 40
_NUMBERS = ("step", "rank", "t0", "t1")
_PAIRS = ("rows", "place")
_SEVERAL = ("fix", "set", "pin", "hide")
_KNOWN = (*_NUMBERS, *_PAIRS, "metric", "path", "before", *_SEVERAL)
_NAME_SHOWN = 32
MAX_CHANGES = 16
"""Changes of a kind, and pinned ranks, that an address can name."""
_MAX_CHANGE_LENGTH = 512
"""Layers of many stages are the longest change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """One view; ``None`` stands for the default of the page."""

    step: int | None = None
    rank: int | None = None
    """Rank of which the timeline shows the groups alone, and which the mesh marks; None for all."""
    t0: int | None = None
    """Start of the time window, ns from the start of the step."""
    t1: int | None = None
    """End of the time window, ns."""
    rows: tuple[int, int] | None = None
    """First and last of the rows that the timeline shows below the pinned ones, from 0; None for all."""
    place: tuple[int, int] | None = None
    """Rank and time, ns from the start of the step, of which the timeline tells what it is."""
    metric: str = METRICS[0]
    path: bool = False
    """Whether the critical path is drawn over the timeline."""
    before: str | None = None
    """Id of the run that the shown one is compared with."""
    fixes: tuple[str, ...] = ()
    """What is repaired in the replay, as ``meshscope whatif --fix`` takes it."""
    settings: tuple[str, ...] = ()
    """What is set in the replay, as ``meshscope whatif --set`` takes it."""
    pins: tuple[int, ...] = ()
    """Ranks that the timeline shows in its first rows, whichever it shows else."""
    hidden: tuple[str, ...] = ()
    """Categories that the timeline leaves out, by their names in small letters."""
    rejected: tuple[str, ...] = ()
    """Fields of the query that were not understood."""

    def window(self, length_ns: int) -> tuple[int, int]:
        """Return the time window inside a step of the given length; the whole if it is outside."""
        if self.is_outside(length_ns):
            return 0, max(length_ns, 1)
        t0 = min(max(self.t0 or 0, 0), max(length_ns - 1, 0))
        t1 = length_ns if self.t1 is None else min(self.t1, length_ns)
        return (t0, t1) if t1 > t0 else (0, max(length_ns, 1))

    def is_outside(self, length_ns: int) -> bool:
        """Return whether the time window begins after the end of a step."""
        return (self.t0 or 0) >= max(length_ns, 1)

    def query(self) -> str:
        """Return the query with its question mark, empty for the default view."""
        fields = {"step": self.step, "rank": self.rank, "t0": self.t0, "t1": self.t1}
        pairs = [(name, str(value)) for name, value in fields.items() if value is not None]
        spans = {"rows": self.rows, "place": self.place}
        pairs += [(name, "-".join(map(str, pair))) for name, pair in spans.items() if pair]
        if self.metric != METRICS[0]:
            pairs.append(("metric", self.metric))
        if self.path:
            pairs.append(("path", _SHOWN))
        if self.before is not None:
            pairs.append(("before", self.before))
        pairs += [("fix", text) for text in self.fixes]
        pairs += [("set", text) for text in self.settings]
        pairs += [("pin", str(rank)) for rank in self.pins]
        pairs += [("hide", name) for name in self.hidden]
        return f"?{urlencode(pairs)}" if pairs else ""

    def is_asked_by(self, query: str | None) -> bool:
        """Return whether a query asks for just this view, so that it need not be drawn again.

        A page arrives drawn, and its address tells it once more what to draw: a click meanwhile
        must not wait for that.
        """
        return not self.rejected and self.query() == query

    def at_step(self, step: int) -> ViewState:
        """Return the whole of another step."""
        return replace(self, step=step, t0=None, t1=None, place=None, rejected=())

    def around(self, rank: int | None) -> ViewState:
        """Return the same view of the groups of a rank; None for all ranks."""
        return replace(self, rank=rank, rows=None, rejected=())

    def zoomed(self, window_ns: tuple[int, int] | None) -> ViewState:
        """Return the same view with another time window; None shows the whole step."""
        t0, t1 = window_ns or (None, None)
        return replace(self, t0=t0, t1=t1, rejected=())

    def with_path(self, *, shown: bool) -> ViewState:
        """Return the same view with or without the critical path."""
        return replace(self, path=shown, rejected=())

    def of_metric(self, metric: str) -> ViewState:
        """Return the same view of another metric."""
        return replace(self, metric=metric, rejected=())

    def compared_with(self, run_id: str | None) -> ViewState:
        """Return the same view beside another run; None for no other run."""
        return replace(self, before=run_id, rejected=())


def view_at(step: int, window_ns: tuple[int, int], like: ViewState) -> ViewState:
    """Return the view of exactly this window, of what a view shows; a negative step is the whole capture."""
    own = ViewState(step=step if step >= 0 else None, t0=window_ns[0], t1=window_ns[1])
    return replace(own, rank=like.rank, rows=like.rows, pins=like.pins, hidden=like.hidden)


def whole_view(state: ViewState) -> ViewState:
    """Return the same view of the whole step and of all rows."""
    return replace(state, t0=None, t1=None, rows=None, rejected=())


def with_changes(state: ViewState, fixes: Sequence[str], settings: Sequence[str]) -> ViewState:
    """Return the same view with other changes to replay; without any for none."""
    return replace(state, fixes=tuple(fixes), settings=tuple(settings), rejected=())


def with_pin(state: ViewState, rank: int, *, pinned: bool) -> ViewState:
    """Return the same view with a rank in the first rows, or not any more."""
    others = tuple(other for other in state.pins if other != rank)
    return replace(state, pins=(*others, rank) if pinned else others, rejected=())


def with_hidden(state: ViewState, name: str, *, hidden: bool) -> ViewState:
    """Return the same view without a category, or with it again."""
    others = tuple(other for other in state.hidden if other != name)
    return replace(state, hidden=(*others, name) if hidden else others, rejected=())


def parse_query(query: str | None) -> ViewState:
    """Return the view that a query asks for."""
    numbers: dict[str, int] = {}
    pairs: dict[str, tuple[int, int]] = {}
    metric, path, before = METRICS[0], False, None
    fields, several, rejected = _fields(query or "")
    for name, value in fields.items():
        if name in _NUMBERS and _is_number(value):
            numbers[name] = int(value)
        elif name in _PAIRS and (pair := _pair(name, value)):
            pairs[name] = pair
        elif name == "metric" and value in METRICS:
            metric = value
        elif name == "path" and value == _SHOWN:
            path = True
        elif name == "before" and RUN_ID.fullmatch(value):
            before = value
        else:
            rejected.append(name if name in _KNOWN else name[:_NAME_SHOWN])
    if "t0" in numbers and "t1" in numbers and numbers["t0"] >= numbers["t1"]:
        del numbers["t0"], numbers["t1"]
        rejected.append("t0, t1")
    return ViewState(
        step=numbers.get("step"),
        rank=numbers.get("rank"),
        t0=numbers.get("t0"),
        t1=numbers.get("t1"),
        rows=pairs.get("rows"),
        place=pairs.get("place"),
        metric=metric,
        path=path,
        before=before,
        fixes=tuple(several["fix"]),
        settings=tuple(several["set"]),
        pins=tuple(map(int, several["pin"])),
        hidden=tuple(several["hide"]),
        rejected=tuple(rejected),
    )


def _fields(query: str) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """Return the first value of each field, those of fields with several, and what cannot be taken."""
    several: dict[str, list[str]] = {name: [] for name in _SEVERAL}
    try:
        pairs = parse_qsl(query.lstrip("?"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        return {}, several, [f"all of it, which has more than {_MAX_FIELDS} fields"]
    fields: dict[str, str] = {}
    rejected = []
    for name, value in pairs:
        if name in several:
            own = several[name]
            fits = _FITS.get(name, _is_change)(value)
            if value in own or len(own) >= MAX_CHANGES or not fits:
                rejected.append(f"{name}={value[:_NAME_SHOWN]}")
            else:
                own.append(value)
            continue
        if name in fields:
            rejected.append(f"a second {name[:_NAME_SHOWN]}")
        fields.setdefault(name, value)
    return fields, several, rejected


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < _MAX_DIGITS


def _pair(name: str, text: str) -> tuple[int, int] | None:
    """Return the two numbers of ``3-7``; None for anything else, and for rows from the last to the first."""
    first, _, second = text.partition("-")
    if not _is_number(first) or not _is_number(second):
        return None
    pair = int(first), int(second)
    return None if name == "rows" and pair[0] > pair[1] else pair


def _is_change(text: str) -> bool:
    """Return whether a text may name a change; whether it fits the run is for the replay to say."""
    return 0 < len(text) <= _MAX_CHANGE_LENGTH and text.isprintable()


_FITS = {"pin": _is_number, "hide": CATEGORY_NAMES.__contains__}
"""What a value of a field with several may be, where it is no change."""


def parse_path(path: str | None) -> tuple[str, str] | None:
    """Return run id and page of ``/run/<id>/<page>``; None for any other path."""
    parts = (path or "").strip("/").split("/")
    if len(parts) == 2 and parts[0] == "run":
        return parts[1], "overview"
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == "run" else None
