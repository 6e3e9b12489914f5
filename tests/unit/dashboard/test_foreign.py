"""Pages of traces that lack what our own runs have: nothing is made up, and nothing called -1 or 0 B."""

import gzip
import json

import pandas as pd

from meshscope.analyze.output.json.collectives import _arrivals, _arrivals_by_group
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.figures.trend import trend_figure
from meshscope.dashboard.pages.communication import _bandwidths, _pairs
from meshscope.dashboard.runs.store import RunStore


def test_memory_of_a_run_without_stages_has_no_stage(tmp_path):
    """Fails when a memory timeline of one rank is that of a stage -1."""
    (tmp_path / "one").mkdir()
    events = [[-1, 1, 100, 0], [1_000, 2, 50, 3], [2_000, 2, 30, 3]]
    place = tmp_path / "one" / "rank3.raw.json.gz"
    place.write_bytes(gzip.compress(json.dumps(events).encode()))
    text = str(page_of(RunStore(tmp_path), "/run/one/overview", ""))
    assert "Memory by stage" in text
    assert "all stages" in text
    assert "stage -1" not in text


def test_messages_without_sizes_are_not_of_0_bytes():
    """Fails when a matrix of sends says that ranks sent 0 B, where their sizes were not recorded."""
    from meshscope.analyze.output.json.bandwidth import Pair

    text = str(_pairs([Pair(0, 1, 0, None), Pair(1, 0, 0, None)]))
    assert "Sizes not recorded" in text
    assert "0 B" not in text


def test_a_lone_member_has_no_arrivals():
    """Fails when a group of one, or of one that was captured, is 0 ns apart and its rank always last."""
    row = {"group_id": "a", "axis": "tp", "kind": "all_reduce", "start_spread_ns": 0}
    frame = pd.DataFrame(
        [
            row | {"members": 1, "last_rank": 3},
            row | {"group_id": "b", "members": 2, "last_rank": 1},
        ]
    )
    assert [one["count"] for one in _arrivals(frame, ["axis", "kind"])] == [1]
    assert [one["group_id"] for one in _arrivals_by_group(frame)] == ["b"]


def test_few_steps_have_no_fractions_at_the_axis():
    """Fails when an axis of two steps has a step 1.5."""
    rows = [{"step": step, "step_ns": 10**6, "mfu": None} for step in (1, 2)]
    assert trend_figure(rows).layout.xaxis.tickvals == (1, 2)
    many = [{"step": step, "step_ns": 10**6, "mfu": None} for step in range(40)]
    assert trend_figure(many).layout.xaxis.tickvals is None


def test_a_lone_group_is_not_compared_with_itself():
    """Fails when the only group of its kind is "at 100 % of the fastest such group"."""
    row = {"axis": "dp", "kind": "all_reduce", "size_from_bytes": 1 << 20, "count": 3}
    row |= {"median_bytes_per_s": 1e9, "of_best_frac": 0.9, "of_like_frac": 1.0}
    row |= {"of_ceiling_frac": None, "best_bytes_per_s": 1.1e9, "hosts": 1}
    alone = str(_bandwidths([row | {"group_id": "0"}]))
    assert "none is compared with another" in alone
    assert "100 %" not in alone
    two = str(_bandwidths([row | {"group_id": "0"}, row | {"group_id": "1", "of_like_frac": 0.5}]))
    assert "group 1 (DP all_reduce) at 50 % of the fastest such group" in two


def test_the_end_of_a_job_is_not_now(runs_dir):
    """Fails when three recorded steps are called the last ten, or a trace of long ago what is now."""
    text = str(page_of(RunStore(runs_dir), "/run/job/live", ""))
    assert "median of the last 3 steps" in text
    assert "Step time at the end" in text
    assert "Step time now" not in text


def test_a_finding_links_to_no_empty_page(tmp_path):
    """Fails when the evidence of a memory trace is a timeline on which nothing is drawn."""
    (tmp_path / "one").mkdir()
    events = [[at * 1_000, 1, (1 << 30), 0] for at in range(1, 80)]
    place = tmp_path / "one" / "rank0.raw.json.gz"
    place.write_bytes(gzip.compress(json.dumps(events).encode()))
    store = RunStore(tmp_path)
    findings = store.get("one").diagnosis.findings
    assert findings
    text = str(page_of(store, "/run/one/findings", ""))
    assert "See the timeline" not in text
    assert ("See the memory" in text) == any(one.kind.startswith("memory") for one in findings)


def test_the_page_has_the_account_of_each_device_of_a_rank(tmp_path):
    """Fails when a rank with two devices shows one busy device, and nothing of the other that waits."""
    place = {"pid": 1, "tid": 1, "ph": "X"}
    events = [
        place
        | {"cat": "user_annotation", "name": f"ProfilerStep#{at}", "ts": 1000 * at, "dur": 1000}
        for at in range(3)
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1000 * at, "dur": 300 * (1 + device)}
        | {"pid": device, "tid": 7, "args": {"device": device, "stream": 7}}
        for at in range(3)
        for device in range(2)
    ]
    header = {"distributedInfo": {"rank": 0, "world_size": 1}}
    (tmp_path / "one").mkdir()
    trace = tmp_path / "one" / "rank0.json"
    trace.write_text(json.dumps(header | {"traceEvents": events}))
    text = str(page_of(RunStore(tmp_path), "/run/one/overview", ""))
    shown = text[text.index("Devices of one rank") :]
    assert shown.index("60.0 %") < shown.index("30.0 %")
