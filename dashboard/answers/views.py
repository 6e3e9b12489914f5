"""What each page says, as plain values: pages draw these, the JSON twins send them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from meshscope.analyze import Diagnosis
from meshscope.analyze.align.steps.whole_capture import WHOLE_CAPTURE
from meshscope.analyze.findings.comparison import compare
from meshscope.analyze.output.json import comparison_to_json
from meshscope.analyze.output.json.bandwidth import pair_matrix
from meshscope.analyze.output.json.standstill import standstill_to_json
from meshscope.analyze.output.timeline.categories import LABELS, Category
from meshscope.analyze.output.timeline.slices import (
    StepSlices,
    in_window,
    with_pinned,
    without_categories,
)
from meshscope.analyze.wording.command_line import command_line
from meshscope.analyze.wording.limits import limit_texts, limits_to_json, reason_to_json
from meshscope.analyze.wording.message import NO_ERROR, error_to_json
from meshscope.analyze.wording.words import capitalised
from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.message import message

from ..runs.compared import gate_verdict, last_like
from ..runs.loaded_run import LoadedRun, is_running, layout_words, placement, usual_step
from ..runs.mesh import mesh_facets, rank_step_matrix
from ..runs.page_maker import StillMeasuredError
from ..runs.run_entry import RunEntry
from ..runs.store import RunStore
from ..runs.typical import typical_step
from ..timeline.paths import StepPath, on_rows
from ..timeline.window_sums import window_sums
from ..view.state import ViewState
from .rows import drawn_rows, is_beyond, pinned_rows, shown_rows
from .suspects import found_choices, knobs, steps_to_show, suspects
from .trend import trend

MAX_JSON_SLICES = 20_000
"""Slices in one answer; a narrower window gives the rest."""
MAX_JSON_CELLS = 500_000
"""Ranks times steps in one answer."""


def run_list(entries: list[RunEntry]) -> dict[str, Any]:
    """Return the run list."""
    return {"runs": [asdict(entry) for entry in entries]}


def overview(run: LoadedRun) -> dict[str, Any]:
    """Return the account of the step time, the key numbers and the limits."""
    diagnosis, use = run.diagnosis, run.diagnosis.utilization
    return {
        "run_id": run.run_id,
        "origin": run.trace.origin,
        "layout": layout_words(run.trace),
        "run": dict(diagnosis.run),
        "step_time_ns": diagnosis.step_time_ns,
        "utilization": asdict(use)
        | {"notes": limit_texts(use.notes)}
        | reason_to_json(use.unknown_because),
        "waterfall": [
            {"class": bar.name, "frac": bar.frac, "dur_ns": bar.dur_ns}
            for bar in diagnosis.waterfall
        ],
        "bubble": {
            "measured_frac": diagnosis.bubble.measured_frac,
            "ideal_frac": diagnosis.bubble.ideal_frac,
            **reason_to_json(diagnosis.bubble.unknown_because),
        },
        "trend": trend(run),
        "causes": [asdict(cause) for cause in diagnosis.causes],
        "waiting": None if diagnosis.waiting is None else asdict(diagnosis.waiting),
        "memory": diagnosis.memory.to_dict("records"),
        "metrics": dict(diagnosis.metrics),
        "model_error_frac": diagnosis.model_error_frac,
        "top_finding": asdict(diagnosis.findings[0]) if diagnosis.findings else None,
        "trust": trust(run),
    }


def trust(run: LoadedRun) -> dict[str, Any]:
    """Return what a reader needs to know before believing the numbers."""
    world_size = run.trace.run.get("world_size")
    return {
        "origin": run.trace.origin,
        "capture_level": run.trace.run.get("capture_level"),
        "ranks_captured": len(run.trace.ranks),
        "world_size": world_size,
        "steps_recorded": int(run.trace.frame("step")["step"].nunique()),
        "peak_source": run.diagnosis.utilization.peak_source,
        "flops_convention": run.diagnosis.utilization.flops_convention,
        "model_error_frac": run.diagnosis.model_error_frac,
        **limits_to_json(run.diagnosis.limits),
    }


def findings(run: LoadedRun) -> dict[str, Any]:
    """Return the findings, most costly first."""
    return {
        "run_id": run.run_id,
        "findings": [asdict(finding) for finding in run.diagnosis.findings],
        "untold": limit_texts(run.diagnosis.unknown_causes),
        **limits_to_json(run.diagnosis.limits),
    }


def shown_step(run: LoadedRun, state: ViewState) -> int:
    """Return the step that a view shows: the one asked for, else a typical one.

    In the place of one that has nothing to draw it is the nearest. Of a job that came to a standstill
    it is the step in which it did.
    """
    if state.step in run.steps:
        return state.step
    asked = state.step
    if asked is not None and asked in run.bare_steps:
        return min(run.steps, key=lambda step: abs(step - asked))
    if run.stood_still_in is not None:
        return run.stood_still_in
    return usual_step(run)


def timeline(run: LoadedRun, state: ViewState) -> tuple[StepSlices, tuple[int, int]]:
    """Return the step that a view shows and the window of it."""
    number = shown_step(run, state)
    step = drawn_rows(run, number, state)
    if state.pins:
        step = with_pinned(step, pinned_rows(run, number, state))
    step = without_categories(step, [Category[name.upper()] for name in state.hidden])
    return step, state.window(step.length_ns)


def timeline_json(run: LoadedRun, state: ViewState) -> dict[str, Any]:
    """Return the slices of the window that a view shows."""
    step, window = timeline(run, state)
    rows = shown_rows(run, step, state)
    seen = in_window(step.slices, window)
    sent = seen.head(MAX_JSON_SLICES)
    names = sent["category"].map(lambda value: LABELS[Category(value)])
    return {
        "run_id": run.run_id,
        "step": None if step.step == WHOLE_CAPTURE else step.step,
        "steps": [number for number in run.steps if number != WHOLE_CAPTURE],
        "length_ns": step.length_ns,
        "longest_ns": step.longest_ns,
        "is_broken_off": step.is_broken_off,
        "window_ns": list(window),
        "ranks": list(step.ranks),
        "rows": {"shown": list(rows.shown), "count": rows.count},
        "undrawn_communications": step.undrawn,
        "slices_in_window": len(seen),
        "slices": sent.drop(columns=["row", "category"]).assign(category=names).to_dict("records"),
        "sums": window_sums(step, window).to_dict("records"),
        "critical_path": critical_path_json(run, state),
        "rejected": list(left_out(run, state)),
    }


def left_out(run: LoadedRun, state: ViewState) -> tuple[str, ...]:
    """Return the fields of the query that a timeline does not follow."""
    step, _ = timeline(run, state)
    absent = ["step"] if state.step is not None and state.step not in run.steps else []
    unknown = ["rank"] if state.rank is not None and state.rank not in run.trace.ranks else []
    outside = ["t0, t1"] if state.is_outside(step.length_ns) else []
    beyond = ["rows"] if is_beyond(run, step.step, state) else []
    pins = [f"pin={rank}" for rank in state.pins if rank not in run.trace.ranks]
    return (*state.rejected, *absent, *unknown, *outside, *beyond, *pins)


def critical_path(run: LoadedRun, state: ViewState) -> StepPath | None:
    """Return the critical path of the step that a view shows; None if not asked for, or absent."""
    step = shown_step(run, state)
    if not state.path or run.path_unknown_because(step):
        return None
    try:
        path = run.path(step)
    except StillMeasuredError:
        return None
    return on_rows(path, timeline(run, state)[0].ranks)


def path_missing_because(run: LoadedRun, state: ViewState) -> str:
    """Return why a view has no critical path, though it asks for one; empty where it has, or does not ask."""
    if not state.path:
        return ""
    step = shown_step(run, state)
    if reason := run.path_unknown_because(step):
        return reason
    try:
        run.path(step)
    except StillMeasuredError as error:
        return capitalised(f"{error}.")
    return ""


def critical_path_json(run: LoadedRun, state: ViewState) -> dict[str, Any] | None:
    """Return the whole critical path of the step, with times from the start of the step.

    None if it is not asked for; where there is none, the reason.
    """
    if not state.path:
        return None
    shown = critical_path(run, state)
    if shown is None:
        return {"unknown_because": path_missing_because(run, state)}
    path = shown.path
    return {
        "start_ns": path.start_ns,
        "end_ns": path.end_ns,
        "by_class": path.by("class").to_dict("records"),
        "by_rank": path.by("rank", "stage").to_dict("records"),
        "pieces_in_path": len(path.pieces),
        "pieces": path.pieces.drop(columns="row").head(MAX_JSON_SLICES).to_dict("records"),
    }


def mesh_json(run: LoadedRun, state: ViewState) -> dict[str, Any]:
    """Return the rank x step matrix of a metric and the slowdown of each rank."""
    matrix = rank_step_matrix(run.diagnosis, state.metric)
    # Of a run of many ranks the newest steps: an answer is for a program, not a copy of the run.
    most = max(MAX_JSON_CELLS // max(len(matrix.ranks), 1), 1)
    return {
        "run_id": run.run_id,
        "metric": state.metric,
        "meaning": matrix.meaning,
        "ranks": list(matrix.ranks),
        "steps": list(matrix.steps)[-most:],
        "steps_in_run": len(matrix.steps),
        "values": matrix.values[:, -most:],
        "facets": [
            {"tp": facet.tp, "slowdown": facet.slowdown, "rank": facet.rank}
            for facet in mesh_facets(run.diagnosis)
        ],
        "stragglers": run.diagnosis.stragglers.to_dict("records"),
        "placement": placement(run),
        "rejected": list(state.rejected),
    }


def stragglers(run: LoadedRun, state: ViewState, *, with_replay: bool = True) -> dict[str, Any]:
    """Return the suspects, the changes that the address asks for, and the step time with them.

    Args:
        run: The run.
        state: The view.
        with_replay: Without it ``what_if`` is None whatever is asked: the first replay of a large run
            takes a while.
    """
    result, refused = None, NO_ERROR
    changes = (state.fixes, state.settings)
    is_asked = bool(state.fixes or state.settings)
    if is_asked and with_replay:
        try:
            result = run.replays.prediction(changes)
        except MeshscopeError as failure:
            refused = error_to_json(failure)
    options = [word for fix in state.fixes for word in ("--fix", fix)]
    options += [word for setting in state.settings for word in ("--set", setting)]
    return {
        "run_id": run.run_id,
        "step_time_ns": run.diagnosis.step_time_ns,
        "suspects": suspects(run.diagnosis),
        "untold": limit_texts(run.diagnosis.unknown_causes),
        "fixes": [choice._asdict() for choice in found_choices(run.diagnosis)],
        "settings": [knob._asdict() for knob in knobs(run.diagnosis)],
        "asked": {"fix": list(state.fixes), "set": list(state.settings)},
        "command": command_line("whatif", run.trace.path, *options) if is_asked else "",
        "what_if": result,
        **refused,
        "rejected": list(state.rejected),
    }


def hang(run: LoadedRun) -> dict[str, Any]:
    """Return how the job ended: who stood in which operation, who was missing, who ended first."""
    found = standstill_to_json(run.trace, run.diagnosis.findings, is_running=is_running(run))
    return {"run_id": run.run_id, **found}


def is_analysed(diagnosis: Diagnosis, step: int) -> bool:
    """Return whether a step is among those that the account is of."""
    return bool((diagnosis.ledger["step"] == step).any())


def replay_rows(run: LoadedRun, state: ViewState) -> list[dict[str, Any]]:
    """Return the replay that the address asks for as the one row of a table; no row for none.

    Raises:
        MeshscopeError: It is not possible.
    """
    changes = (state.fixes, state.settings)
    if not any(changes):
        return []
    return [{"fix": state.fixes, "set": state.settings, **run.replays.prediction(changes)}]


def repaired_pair(run: LoadedRun, state: ViewState) -> tuple[StepSlices, StepSlices] | None:
    """Return an analysed step as it was, and with the changes that the address asks for.

    None where these have no times of what was recorded.

    Raises:
        MeshscopeError: A change does not fit the run.
    """
    analysed = [step for step in run.steps if is_analysed(run.diagnosis, step)]
    if not analysed:
        return None
    shown = steps_to_show(run.diagnosis, state.fixes, analysed)
    step = state.step if state.step in analysed else typical_step(run.diagnosis, shown)
    recorded, _ = timeline(run, state.at_step(step))
    then = run.replays.repaired((state.fixes, state.settings), recorded)
    return None if then is None else (recorded, then)


def communication(run: LoadedRun) -> dict[str, Any]:
    """Return how the ranks communicate, without the list of single collectives and without links.

    Of many ranks the matrix of pairs is null: what they sent is in the list of transfers.
    """
    found = {name: value for name, value in run.communication().items() if name != "links"}
    is_small = len(run.trace.ranks) ** 2 <= MAX_JSON_CELLS
    pairs = pair_matrix(found["transfers"]) if is_small else None
    return {"run_id": run.run_id, **found, "pairs": pairs}


def links(run: LoadedRun) -> dict[str, Any]:
    """Return the use of the links."""
    return {"run_id": run.run_id, **run.communication()["links"]}


def memory(run: LoadedRun) -> dict[str, Any]:
    """Return what stages held and should hold, term by term and over time."""
    return {"run_id": run.run_id, **run.memory()}


def balance(run: LoadedRun) -> dict[str, Any]:
    """Return the present layer split and better ones, with time and memory by stage."""
    return {"run_id": run.run_id, **run.balance()}


def kernels(run: LoadedRun) -> dict[str, Any]:
    """Return what the devices did: kernels, operators, calls of the host that wait."""
    return {"run_id": run.run_id, **run.kernels()}


def with_before(store: RunStore, run: LoadedRun, state: ViewState) -> ViewState:
    """Return a view that names the run to compare with: the last like the shown one, if none is named."""
    if state.before is not None:
        return state
    return replace(state, before=last_like(store.entries(0), run.run_id))


def comparison(store: RunStore, run: LoadedRun, state: ViewState) -> dict[str, Any]:
    """Return what changed from another run of the folder to this one: the last like it where none is named.

    Raises:
        MeshscopeError: There is no such run, or one of the two cannot be compared.
    """
    state = with_before(store, run, state)
    if state.before is None:
        remedy = message("advice.before")
        raise ConfigError(message("refused.no_run_to_compare"), where="before", remedy=remedy)
    before, after = store.get(state.before).side(), run.side()
    return {
        "run_id": run.run_id,
        "before_id": state.before,
        "gate": gate_verdict(before, after),
        **comparison_to_json(compare(before.side, after.side)),
        "rejected": list(state.rejected),
    }
