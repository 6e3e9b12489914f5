"""Memory timelines of the profiler: peak, end, and what the memory was for."""

import gzip
import json

import pytest
from tests.messages import values_of
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.output.text.diagnosis import to_text
from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import TABLES

PARAMETER, OPTIMIZER, INPUT, TEMPORARY, ACTIVATION, GRADIENT, DETAIL, UNKNOWN = range(8)
EVENTS = [
    [-1, 1, 100, PARAMETER],
    [-1, 1, 7, UNKNOWN],
    [1_000, 2, 50, ACTIVATION],
    [2_000, 2, 30, GRADIENT],
    [2_000, 3, -30, GRADIENT],
    [2_000, 3, 30, GRADIENT],
    [3_000, 4, -50, ACTIVATION],
    [4_000, 2, 5, OPTIMIZER],
]
COLUMNS = ["allocated", "peak", "parameters", "gradients", "optimizer", "activations", "other"]


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def moments(trace):
    """Return the samples as time and sizes."""
    rows = trace.frame("memory")
    return rows[["time_ns", *(f"{name}_bytes" for name in COLUMNS)]].to_numpy().tolist()


def test_the_peak_the_end_and_their_categories_are_kept(tmp_path):
    """The memory of a job would be known from its end, when the activations are gone."""
    path = tmp_path / "rank3.raw.json.gz"
    path.write_bytes(gzip.compress(json.dumps(EVENTS).encode()))
    trace = import_trace(path)
    assert trace.ranks == (3,)
    assert moments(trace) == [
        [1_000, 107, 107, 100, 0, 0, 0, 7],
        [2_000, 187, 187, 100, 30, 0, 50, 7],
        [4_000, 142, 187, 100, 30, 5, 0, 7],
    ]
    assert trace.frame("memory")["reserved_bytes"].isna().all()
    notes = [limit.values["what"] for limit in trace.limits if "what" in limit.values]
    assert values_of(notes, "scope.no_category")["share"] == pytest.approx(0.04, abs=0.005)
    assert TABLES["memory"].conform(trace.tables["memory"]).equals(trace.tables["memory"])


def test_both_forms_of_one_timeline_agree(tmp_path):
    """The same step would have two peaks, by the suffix of its export."""
    times = [1, 2, 3]
    sizes = [[0] * 9 for _ in times]
    for row, (parameter, activation) in zip(sizes, ((10, 0), (10, 90), (10, 20)), strict=True):
        row[1 + PARAMETER], row[1 + ACTIVATION] = parameter, activation
    (tmp_path / "rank0.json").write_text(json.dumps([times, sizes]))
    assert moments(import_trace(tmp_path)) == [
        [1_000, 10, 10, 10, 0, 0, 0, 0],
        [2_000, 100, 100, 10, 0, 0, 90, 0],
        [3_000, 30, 100, 10, 0, 0, 20, 0],
    ]


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.9])
def test_a_file_that_is_cut_off_gives_what_it_has(tmp_path, keep):
    """A job that died while it wrote would have no memory account."""
    events = [[1_000 + i, 2, 1, ACTIVATION] for i in range(1_000)]
    text = json.dumps(events)
    (tmp_path / "rank0.json").write_text(text[: int(len(text) * keep)])
    trace = import_trace(tmp_path)
    whole = text[: int(len(text) * keep)].count("]")
    assert moments(trace)[-1][1] == whole
    notes = [limit.values["what"] for limit in trace.limits if "what" in limit.values]
    assert values_of(notes, "missing.end_of_file")["damage"].code == "damage.ends_early"


def test_a_timeline_larger_than_a_chunk(tmp_path):
    """Events at the border of two pieces would be lost or counted twice."""
    events = [[i, 2, 3, ACTIVATION] for i in range(1, 80_001)]
    (tmp_path / "rank0.json").write_text(json.dumps(events))
    times, sizes = list(range(1, 40_001)), [[0, 1, 0, 0, 0, i, 0, 0, 0] for i in range(40_000)]
    (tmp_path / "rank1.json").write_text(json.dumps([times, sizes]))
    trace = import_trace(tmp_path)
    assert trace.frame("memory").groupby("rank")["allocated_bytes"].max().to_dict() == {
        0: 240_000,
        1: 40_000,
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[1, 2, 3, 4], [2, 2, 3, 9]]", "category"),
        ("[[1, 2, 3, 4], [2, 2, 3]]", "memory timeline"),
        ("[[1, 2, 3, 4], [2, 2, 99999999999999999999, 1]]", "memory timeline"),
        ('[[1, 2, 3, 4], [2, 2, "x", 1]]', "memory timeline"),
        ("[[1, 2], [[0, 0]]]", "memory timeline"),
    ],
)
def test_what_is_laid_out_differently_is_refused(tmp_path, text, what):
    """Numbers of something else would be memory, or the reader fail with a traceback."""
    (tmp_path / "rank0.json").write_text(text)
    with pytest.raises(TraceFormatError, match=what):
        import_trace(tmp_path)


def test_a_page_is_refused_with_a_remedy(tmp_path):
    """Who exported the picture would not learn that the other suffix has the numbers."""
    page = "<html>\n<head><title>GPU Memory Timeline HTML</title></head><body></body></html>"
    (tmp_path / "rank0.html").write_text(page)
    with pytest.raises(TraceFormatError, match=r"page.*raw\.json\.gz"):
        import_trace(tmp_path)


def test_files_of_several_ranks_need_their_numbers(tmp_path):
    """Two files would be one rank, or ranks be numbered by the order of files."""
    for name in ("rank4.json", "rank_4.json"):
        (tmp_path / name).write_text(json.dumps(EVENTS))
    with pytest.raises(TraceFormatError, match=r"is rank 4, and so is"):
        import_trace(tmp_path)
    (tmp_path / "rank_4.json").rename(tmp_path / "mine.json")
    trace = import_trace(tmp_path)
    assert trace.ranks == (4,)
    assert mentions(trace, "mine.json", "names no rank")


def test_memory_alone_is_diagnosed_without_an_account_of_time(tmp_path):
    """The user would get an error instead of the peak, or a step time that nobody measured."""
    for rank, factor in ((0, 1), (1, 10), (2, 1)):
        events = [[time, kind, size * factor << 20, what] for time, kind, size, what in EVENTS]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(events))
    result = diagnose(load_trace(tmp_path))
    (finding,) = (one for one in result.findings if one.kind == "memory_headroom")
    assert finding.where == {"rank": 1}
    assert "1.83 GiB" in str(finding.claim)
    assert str(finding.evidence[0]).startswith(
        "When most was allocated: parameters 1000 MiB, activ"
    )
    assert str(finding.evidence[1]) == "Median of the other 2 ranks: 187 MiB"
    assert result.memory["peak_frac"].isna().all()
    assert not result.waterfall
    text = to_text(result)
    assert "1000.0 MiB" in text
    assert "How full it was is unknown" in text


@pytest.mark.traces
def test_a_real_timeline(traces_dir):
    """The sums of a real training step would differ from those of its own events."""
    path = traces_dir / "hta" / "memory_analysis" / "memory_timeline.raw.gz"
    totals, highest = [0] * 8, (0, 0, [])
    for time, _, size, category in json.loads(gzip.decompress(path.read_bytes())):
        totals[category] += size
        if sum(totals) > highest[0]:
            highest = (sum(totals), time, totals[:])
    _, peak, end = moments(import_trace(path))
    assert peak[:2] == [highest[1], highest[0]]
    of = highest[2]
    other = of[INPUT] + of[TEMPORARY] + of[DETAIL] + of[UNKNOWN]
    assert peak[3:] == [of[PARAMETER], of[GRADIENT], of[OPTIMIZER], of[ACTIVATION], other]
    assert end[1:3] == [sum(totals), highest[0]]
