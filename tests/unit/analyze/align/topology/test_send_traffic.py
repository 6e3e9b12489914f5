"""Rings of context parallelism, distinguished from pipelines by the passes in which they send."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.align.topology.axes import with_axes
from meshscope.analyze.align.topology.group_traffic import pipelines, traffic_axes
from meshscope.analyze.align.topology.layout import with_inferred_layout
from meshscope.analyze.align.topology.send_traffic import ring_pairs, rings
from meshscope.probe.schema.layout import ParallelLayout

_SPANS = {"F": "forward", "B": "backward"}
_NS = 10


def job(*words, reducing=False):
    """Return a capture of ours from one text a rank: passes with what they send, as ``F(>1 <2)``.

    With ``reducing`` all ranks reduce gradients at the end.
    """
    spans, p2p = [], []
    for rank, text in enumerate(words):
        begun = []
        for at, word in enumerate(text.replace("(", " ( ").replace(")", " ) ").split()):
            if word in _SPANS:
                begun.append((_SPANS[word], at * _NS))
            elif word == ")":
                kind, start = begun.pop()
                timed = {"start_ns": start, "dur_ns": at * _NS - start}
                spans.append({"rank": rank, "kind": kind, "stage": -1, **timed})
            elif word != "(":
                sent = {"rank": rank, "peer": int(word[1:]), "issue_ns": at * _NS}
                direction = "send" if word[0] == ">" else "recv"
                timed = {"start_ns": at * _NS, "end_ns": at * _NS + 1}
                p2p.append({"direction": direction, **sent, **timed})
    ranks = tuple(range(len(words)))
    late = {"kind": "all_reduce", "size_bytes": 8, "issue_ns": 900, "start_ns": 900, "end_ns": 901}
    return trace_of(
        origin="meshscope",
        run={"world_size": len(words)},
        ranks=ranks,
        group=[{"ranks": list(ranks)}],
        collective=[{"rank": rank, **late} for rank in ranks] if reducing else [],
        span=spans,
        p2p=p2p,
    )


RING = ("F(>1 <2) B(>2 <1)", "F(>2 <0) B(>0 <2)", "F(>0 <1) B(>1 <0)")
TWO = ("F(>1 <1) B(>1 <1)", "F(>0 <0) B(>0 <0)")
TWO_OF_TWO = (*TWO, "F(>3 <3) B(>3 <3)", "F(>2 <2) B(>2 <2)")


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        (RING, ParallelLayout(cp=3)),
        (TWO, ParallelLayout(cp=2)),
        (TWO_OF_TWO, ParallelLayout(cp=2, dp=2)),
    ],
    ids=["three", "two", "two of two"],
)
def test_sends_both_ways_within_passes_are_context_parallel(words, layout):
    """Fails when ring attention by hand is a pipeline, with stages that have no peers and a bubble."""
    found = with_inferred_layout(with_axes(job(*words, reducing=True)))
    assert found.layout == layout
    assert set(found.frame("p2p")["axis"]) == {"cp"}


def test_a_ring_without_reductions_is_context_parallel_too():
    """Fails when the group of a ring is a pipeline for want of other traffic."""
    groups = with_axes(job(*RING)).frame("group")
    assert groups["axis"].tolist() == ["cp"]
    assert groups["evidence"][0].startswith('axis.ring_of_forwards {"pairs": ["0-1"')


def test_stages_of_a_mesh_with_rings_are_found_beside_them():
    """Fails when rings and pipelines on one group are taken for one long pipeline."""
    words = (
        "F(>1 <1) >2 <2 B(>1 <1)",
        "F(>0 <0) >3 <3 B(>0 <0)",
        "<0 F(>3 <3) B(>3 <3) >0",
        "<1 F(>2 <2) B(>2 <2) >1",
    )
    found = with_inferred_layout(with_axes(job(*words)))
    assert found.layout == ParallelLayout(pp=2, cp=2)
    axes = found.frame("p2p")[["rank", "peer", "axis"]].astype(str).drop_duplicates()
    of_first = axes.loc[axes["rank"] == "0", ["peer", "axis"]]
    assert sorted(of_first.itertuples(index=False, name=None)) == [("1", "cp"), ("2", "pp")]


@pytest.mark.parametrize(
    "words",
    [
        ("F() >1 <1 B()", "<0 F() B() >0"),
        ("F(>1) B(<1)", "F(<0 >2) B(<2 >0)", "F(<1) B(>1)"),
        ("F(>1) F(<2 >1) B(<1)", "F(<0 >2) F(<0 >2) B()", "F(<1 >0) F(<1) B()"),
        ("F(F() >1 <1 B())", "F(<0 F() B() >0)"),
    ],
    ids=["between passes", "within passes", "chunks within passes", "a schedule in a module"],
)
def test_stages_are_no_ring(words):
    """Fails when a pipeline written by hand loses its stages to context parallelism."""
    assert rings(job(*words)) == []


def test_rows_that_send_on_one_group_are_several_pipelines():
    """Fails when replicas of a pipeline on the group of all ranks count as one pipeline of them all."""
    trace = job("F() >2 <2 B()", "F() >3 <3 B()", "<0 F() B() >0", "<1 F() B() >1")
    assert traffic_axes(trace) == {}
    assert pipelines(trace) == [(0, 2), (1, 3)]


def test_what_a_ring_sends_goes_both_ways():
    """Fails when the gradients that go back round a ring join its ranks to a pipeline."""
    assert ring_pairs(job(*RING)) == {(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)}
