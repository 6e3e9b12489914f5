"""The pages of communication and links say what ``meshscope collectives`` says."""

import json

import numpy as np
import pytest
from plotly.utils import PlotlyJSONEncoder

from meshscope.analyze import load_trace
from meshscope.analyze.output.json import collectives_to_json
from meshscope.analyze.output.json.bandwidth import Pair
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, write_run
from meshscope.dashboard import create_app
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.figures.communication import bandwidth_figure, pair_figure
from meshscope.dashboard.figures.links import port_figure
from meshscope.dashboard.pages.links import PHASES
from meshscope.dashboard.plain import units
from meshscope.dashboard.runs.store import RunStore
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a folder with a job of two hosts."""
    folder = tmp_path_factory.mktemp("runs")
    job = SyntheticJob(
        layout=ParallelLayout(pp=2, dp=4),
        microbatches=4,
        ranks_per_host=4,
        steps=4,
        costs=Costs(dp_ns=4_000_000),
    )
    write_run(job, *generate(job), folder).rename(folder / "job")
    return RunStore(folder)


def drawn(store, page):
    """Return a page as JSON."""
    return json.dumps(page_of(store, f"/run/job/{page}", ""), cls=PlotlyJSONEncoder)


def test_the_page_of_communication_says_what_the_command_says(store):
    """Fails when an axis, its overlap, a bandwidth or a pair is missing on the page."""
    result = collectives_to_json(load_trace(store.path_of("job")))
    text = drawn(store, "communication")
    assert result["overlap"]
    assert result["bandwidths"]
    for row in result["overlap"]:
        assert json.dumps(units.duration(row["exposed_ns_per_step"]))[1:-1] in text
    for row in result["bandwidths"]:
        assert units.rate(row["median_bytes_per_s"], "B/s") in text
    assert f"{len(result['pairs']['ranks'])} ranks sent" in text
    assert "bandwidth-graph" in text
    assert "pairs-graph" in text


def test_the_twins_send_what_the_pages_draw(store):
    """Fails when a program gets other numbers than a reader, or no list of ports."""
    client = create_app(store.root).server.test_client()
    result = collectives_to_json(load_trace(store.path_of("job")))
    twin = client.get("/api/v1/runs/job/communication.json").get_json()
    assert twin["overlap"] == json.loads(json.dumps(result["overlap"]))
    assert "collectives" not in twin
    assert client.get("/api/v1/runs/job/links.json").get_json()["unknown"] == "samples"


def test_a_run_without_samples_says_so(store):
    """Fails when unknown links look like idle ones."""
    assert "run the node agent" in drawn(store, "links")


def test_port_figure_has_rate_and_phases():
    """Fails when the phases below a port are not those of the same intervals."""
    series = {
        "begin_ns": [0.0, 1e9],
        "end_ns": [1e9, 3e9],
        "bytes_per_s": [1e9, 2e9],
        "phase_frac": {phase: [0.2, 0.2] for phase in PHASES},
    }
    port = {"direction": "tx", "speed_bytes_per_s": 4e9, "series": series}
    figure = port_figure([port], PHASES)
    rate, *bars = figure.data
    assert list(rate.x) == [0.0, 1.0, 3.0]
    assert list(rate.y) == [1.0, 1.0, 2.0]
    assert [bar.name for bar in bars] == list(PHASES.values())
    assert all(list(bar.x) == [0.5, 2.0] and list(bar.width) == [1.0, 2.0] for bar in bars)


@pytest.mark.parametrize(
    ("rate", "unit", "shown"), [(2e9, "GB/s", 2.0), (1.5e6, "MB/s", 1.5), (0.0, "B/s", 0.0)]
)
def test_the_unit_of_an_axis_fits_its_rates(rate, unit, shown):
    """Fails when the ports of a small job are drawn as thousandths of GB/s."""
    series = {
        "begin_ns": [0.0],
        "end_ns": [1e9],
        "bytes_per_s": [rate],
        "phase_frac": {phase: [0.2] for phase in PHASES},
    }
    port = {"direction": "tx", "speed_bytes_per_s": 4e9, "series": series}
    figure = port_figure([port], PHASES)
    assert figure.layout.yaxis.title.text == unit
    assert list(figure.data[0].y) == [shown, shown]
    assert figure.data[0].customdata[0] == units.rate(rate, "B/s")


def sends(ranks):
    """Return a ring of sends, of which the last has no known bandwidth."""
    return [
        Pair(rank, (rank + 1) % ranks, 2_000_000, 3e9 if rank else None) for rank in range(ranks)
    ]


@pytest.mark.parametrize(("ranks", "side"), [(4, 4), (128, 64), (1024, 103)])
def test_of_many_ranks_some_share_a_cell(ranks, side):
    """A million cells would keep the browser busy for seconds; the table still names each pair."""
    figure = pair_figure(sends(ranks))
    (trace,) = figure.data
    assert np.shape(trace.z) == (side, side)
    assert (trace.zmin, trace.zmax) == (0, 3)
    first, *rows = figure.layout.meta["table"]["rows"]
    assert first == [0, 1, 2.0, None]
    assert rows == [[rank, (rank + 1) % ranks, 2.0, 3.0] for rank in range(1, ranks)]


def test_the_slowest_pair_of_a_cell_is_drawn():
    """Fails when a single slow pair of 1,024 ranks is hidden by fast ones beside it."""
    slow = 517
    pairs = [pair._replace(bytes_per_s=1e9) if pair[0] == slow else pair for pair in sends(1024)]
    (trace,) = pair_figure(pairs).data
    cells = np.asarray(trace.z)
    (place,) = zip(*np.nonzero(cells == 1), strict=True)
    assert "rank 517 to rank 518" in trace.text[place]
    assert "worst of" in trace.text[place]


def test_groups_are_lines_of_one_trace():
    """A trace for each of a thousand groups would take seconds; joined, two groups would look like one."""
    rows = [
        {
            "group_id": group,
            "axis": "tp",
            "kind": "all_reduce",
            "size_from_bytes": size,
            "median_bytes_per_s": 1e9,
            "best_bytes_per_s": 2e9,
            "count": 3,
        }
        for size in (1024, 2048)
        for group in ("a", "b")
    ]
    figure = bandwidth_figure(rows)
    (trace,) = figure.data
    assert list(trace.x) == [1024, 2048, None, 1024, 2048]
    cells = figure.layout.meta["table"]["rows"]
    assert cells[1] == ["a", "tp", "all_reduce", 2048, 1.0]


def test_points_on_one_another_are_drawn_once():
    """Fails when thousands of equal groups keep the browser busy, or a slow one of them is lost."""
    row = {"axis": "tp", "kind": "all_reduce", "size_from_bytes": 1024}
    rows = [
        row
        | {"group_id": f"g{at}", "median_bytes_per_s": speed, "best_bytes_per_s": 2e9, "count": 3}
        for at, speed in enumerate([1e8, *[1e9] * 500])
    ]
    figure = bandwidth_figure(rows)
    (trace,) = figure.data
    assert sorted(trace.y) == [0.1, 1.0]
    assert "as fast: 499 other groups" in trace.hovertext[list(trace.y).index(1.0)]
    assert len(figure.layout.meta["table"]["rows"]) == 501


def test_the_table_of_very_many_pairs_has_the_slowest():
    """Fails when a page of 16,384 ranks carries megabytes of pairs, or leaves out the slow one."""
    ranks = 5000
    pairs = [pair._replace(bytes_per_s=1e9) if pair[0] == 4321 else pair for pair in sends(ranks)]
    rows = pair_figure(pairs).layout.meta["table"]["rows"]
    assert len(rows) == 2000
    assert rows[0][:2] == [4321, 4322]
