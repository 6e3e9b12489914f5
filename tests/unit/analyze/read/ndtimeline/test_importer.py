"""NDTimeline jobs become tables: mesh, step windows, spans, transfers, collectives."""

import numpy as np
import pandas as pd
import pytest
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import TABLES

FIRST, LAST = (2, 1, 0), (6, 1, 1)
"""(rank, dp_rank, stage): the pipeline of the second replica of a job with tensor groups of 2 ranks."""


def op(worker, optype, start_s, dur_s, *, step=10, seq=0, chunk=-1, microbatch=-1):
    """Return one row."""
    rank, dp_rank, stage = worker
    return {
        "rank": rank, "dp_rank": dp_rank, "stage": stage, "step": step, "optype": optype,
        "start_ts": start_s, "duration": dur_s, "seq_id": seq, "mc": chunk, "mb_id": microbatch,
    }  # fmt: skip


def write_job(folder, rows, meta=None, name="J"):
    """Write a job with the narrow types of the format."""
    frame = pd.DataFrame(rows).astype(
        {"rank": "int16", "dp_rank": "int8", "stage": "int8", "start_ts": "float32",
         "duration": "float32", "seq_id": "int32", "mc": "int8", "mb_id": "int8"}
    )  # fmt: skip
    frame["optype"] = frame["optype"].astype("category")
    frame.to_parquet(folder / f"trace-{name}.parquet", index=False)
    if meta is not None:
        lines = [f"{key}: {value}" for key, value in meta.items()]
        (folder / f"meta-{name}.yaml").write_text("\n".join(["# sizes", *lines, ""]))
    return folder / f"trace-{name}.parquet"


PIPELINE = [
    op(FIRST, "forward-compute", 0.5, 1, chunk=0, microbatch=3),
    op(FIRST, "forward-send", 1.5, 0.25),
    op(LAST, "forward-recv", 0.0, 1.75),
    op(LAST, "forward-compute", 1.75, 2, chunk=0, microbatch=3),
    op(LAST, "backward-send", 4, 0.5),
    op(FIRST, "backward-recv", 3, 1.5),
    op(FIRST, "optimizer", 5, 0.5),
]
META = {"trial_name": "J", "dp_size": 2, "pp_size": 2, "tp_size": 2, "vpp_size": 1, "world_size": 8}


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def test_ranks_keep_their_numbers_and_the_order_of_axes_is_found(tmp_path):
    """Workers that are not contiguous would get a wrong place in the mesh."""
    workers = [(0, 0, 0), (2, 1, 0), (4, 0, 1), (6, 1, 1)]
    rows = [op(worker, "forward-compute", 0, 1, chunk=0, microbatch=0) for worker in workers]
    trace = import_trace(write_job(tmp_path, rows, META))
    assert trace.ranks == (0, 2, 4, 6)
    assert trace.layout.order == "pp-dp-cp-tp"
    assert trace.layout.coordinates(6) == {"pp": 1, "dp": 1, "cp": 0, "tp": 0}
    assert mentions(trace, "4 of 8 ranks recorded")
    swapped = [(rank, stage, dp) for rank, dp, stage in workers]
    rows = [op(worker, "forward-compute", 0, 1, chunk=0, microbatch=0) for worker in swapped]
    assert import_trace(write_job(tmp_path, rows, META)).layout.order == "dp-pp-cp-tp"


def test_a_mesh_that_does_not_fit_is_not_invented(tmp_path):
    """A wrong mesh would put the blame on a healthy stage."""
    rows = [op((5, 0, 1), "forward-compute", 0, 1, chunk=0, microbatch=0)]
    trace = import_trace(write_job(tmp_path, rows, META))
    assert trace.layout is None
    assert mentions(trace, "layout is not known")


def test_without_a_meta_file_the_recorded_workers_give_the_sizes(tmp_path):
    """A job sent without its small second file would be refused."""
    workers = [(0, 0, 0), (1, 0, 1)]
    rows = [op(worker, "forward-compute", 0, 1, chunk=0, microbatch=0) for worker in workers]
    trace = import_trace(write_job(tmp_path, rows))
    assert (trace.layout.pp, trace.layout.dp, trace.layout.tp) == (2, 1, 1)
    assert mentions(trace, "no meta")


def test_all_workers_share_the_window_of_a_step(tmp_path):
    """Idle time before a worker's first operation would not be counted."""
    steps = import_trace(write_job(tmp_path, PIPELINE, META)).frame("step")
    assert steps[["rank", "step", "start_ns", "dur_ns"]].to_numpy().tolist() == [
        [2, 10, 0, 5_500_000_000],
        [6, 10, 0, 5_500_000_000],
    ]


def test_computations_become_spans(tmp_path):
    """A microbatch would be on the wrong stage, or its time rounded."""
    trace = import_trace(write_job(tmp_path, PIPELINE, META))
    assert trace.per_step_clock
    columns = ["rank", "kind", "stage", "chunk", "microbatch", "start_ns", "dur_ns"]
    assert trace.frame("span")[columns].to_numpy().tolist() == [
        [2, "forward", 0, 0, 3, 500_000_000, 1_000_000_000],
        [2, "optimizer", 0, -1, -1, 5_000_000_000, 500_000_000],
        [6, "forward", 1, 0, 3, 1_750_000_000, 2_000_000_000],
    ]


def test_both_ends_of_a_transfer_have_one_key(tmp_path):
    """Receives would wait for the wrong send."""
    rows = import_trace(write_job(tmp_path, PIPELINE, META)).frame("p2p")
    sends = rows[rows["direction"] == "send"].set_index("rank")
    receives = rows[rows["direction"] == "recv"].set_index("peer")
    joined = sends.join(receives.add_suffix("_r"))
    assert (joined["peer"] == [6, 2]).all()
    for column in ("group_id", "seq", "step"):
        assert (joined[column].astype(str) == joined[f"{column}_r"].astype(str)).all()
    assert rows["seq"].nunique() == 2
    assert rows.set_index(["rank", "direction"])["microbatch"].to_dict() == {
        (2, "send"): 3,
        (6, "recv"): 3,
        (6, "send"): -1,
        (2, "recv"): -1,
    }


def test_an_operation_recorded_twice_counts_once(tmp_path):
    """A send would be matched twice, which no analysis of transfers can make sense of."""
    again = [op(FIRST, "forward-send", 1.75, 0.25), op(LAST, "backward-send", 4, 0.5)]
    trace = import_trace(write_job(tmp_path, [*PIPELINE, *again], META))
    sends = trace.frame("p2p").query("direction == 'send'")
    assert sends[["rank", "start_ns"]].to_numpy().tolist() == [[2, 1_750_000_000], [6, 4 * 10**9]]
    assert mentions(trace, "2 of 9 operations", "recorded again")


def test_a_peer_that_is_not_recorded_is_unknown(tmp_path):
    """The transfer would be joined with another stage's."""
    rows = [op(FIRST, "forward-send", 0, 1), op(FIRST, "forward-compute", 0, 1, chunk=0)]
    trace = import_trace(write_job(tmp_path, rows, META))
    assert trace.frame("p2p")["peer"].tolist() == [-1]
    assert mentions(trace, "1 transfer with a peer", "not recorded")


def test_collectives_of_a_stage_and_of_the_embedding(tmp_path):
    """Replicas would be joined across stages, or two operations of one group into one."""
    rows = []
    for worker in [(0, 0, 0), (2, 1, 0), (4, 0, 1), (6, 1, 1)]:
        rows += [op(worker, "params-all-gather", 0, 1, step=step, chunk=0) for step in (10, 30)] + [
            op(worker, "grads-reduce-scatter", 2, 1, chunk=0),
            op(worker, "embedding-grads-all-reduce", 3, 1),
            op(worker, "layernorm-grads-all-reduce", 4, 1),
        ]
    trace = import_trace(write_job(tmp_path, rows, META))
    frame = trace.frame("collective")
    members = frame.groupby(["group_id", "seq"], observed=True)["rank"].agg(list)
    assert sorted(members.loc["dp stage 0"].tolist()) == [[0, 2]] * 3
    assert members.loc["embedding dp 1"].tolist() == [[2, 6]]
    axis = trace.frame("group").set_index("group_id")["axis"].to_dict()
    assert (axis["dp stage 1"], axis["embedding dp 0"]) == ("dp", "pp")
    assert axis["tensor group of rank 4"] == "tp"
    assert not frame.duplicated(["rank", "event_id"]).any()
    assert mentions(trace, "sizes are not recorded")


def test_unknown_operations_and_rows_without_time_are_counted(tmp_path):
    """A newer recorder's operations would vanish without a word."""
    rows = [*PIPELINE, op(FIRST, "expert-dispatch", 0, 1), op(FIRST, "optimizer", np.nan, 1)]
    trace = import_trace(write_job(tmp_path, rows, META))
    assert mentions(trace, "1 of 9 operations", "expert-dispatch")
    assert mentions(trace, "1 of 9 operations", "no time")


def test_input_that_cannot_be_one_job_is_refused(tmp_path):
    """Two jobs, or one rank in two places, would be added up."""
    moved = [op((4, 0, 0), "gc", 0, 1), op((4, 0, 1), "gc", 0, 1)]
    with pytest.raises(TraceFormatError, match="several places"):
        import_trace(write_job(tmp_path, moved))
    with pytest.raises(TraceFormatError, match="no operation"):
        import_trace(write_job(tmp_path, [op(FIRST, "something", 0, 1)]))
    write_job(tmp_path, PIPELINE, name="K")
    with pytest.raises(TraceFormatError, match="2 jobs"):
        import_trace(tmp_path)


def test_a_job_of_impossible_times_is_refused_for_them(tmp_path):
    """Its operations would be called unknown, and nobody would look at the clock."""
    rows = [row | {"start_ts": 9.2e9} for row in PIPELINE]
    with pytest.raises(TraceFormatError, match="7 of 7 operations left out: impossible values"):
        import_trace(write_job(tmp_path, rows, META))


def test_an_operation_of_days_is_left_out(tmp_path):
    """Fails when one length that nothing can have becomes the length of a step."""
    rows = [row | ({"duration": 1.8e7} if not place else {}) for place, row in enumerate(PIPELINE)]
    trace = import_trace(write_job(tmp_path, rows, META))
    assert "1 of 7 operations left out: impossible values" in " ".join(texts(trace.limits))
    assert trace.frame("step")["dur_ns"].max() < 10**12


@pytest.fixture(scope="module")
def labelled(traces_dir):
    """Return the published job, read once."""
    return import_trace(traces_dir / "straggler_analysis")


@pytest.mark.traces
def test_the_published_job(labelled):
    """The job with the labelled cause would have another mesh or other stage times."""
    assert (labelled.layout.pp, labelled.layout.dp, labelled.layout.tp) == (4, 2, 1)
    assert labelled.run["microbatches"] == 4
    assert len(set(labelled.frame("step")["step"])) == 32
    rows = labelled.frame("span")
    centre = rows.groupby(["kind", "stage"], observed=True)["dur_ns"].median() / 1e6
    assert centre["forward"].tolist() == pytest.approx([67, 67, 67, 139.7], rel=0.02)
    assert centre["backward"].tolist() == pytest.approx([143, 143, 144, 203.5], rel=0.02)
    mean_s = labelled.frame("step").groupby("step")["dur_ns"].first().mean() / 1e9
    assert mean_s == pytest.approx(2.214448, abs=1e-6)


@pytest.mark.traces
def test_the_published_job_is_joined_completely(labelled):
    """A send without its receive, or a collective without a member, would be free of waiting."""
    rows = labelled.frame("p2p")
    is_send = rows["direction"] == "send"
    source = rows["rank"].where(is_send, rows["peer"])
    target = rows["peer"].where(is_send, rows["rank"])
    key = [rows["group_id"].astype(str), source, target, rows["seq"]]
    assert set(rows.groupby(key)["direction"].nunique()) == {2}
    collective = labelled.frame("collective")
    present = collective.groupby(["group_id", "seq"], observed=True)["rank"].agg(sorted)
    ranks = labelled.frame("group").set_index("group_id")["ranks"].map(sorted)
    assert (present == present.index.get_level_values("group_id").astype(str).map(ranks)).all()


@pytest.mark.traces
def test_every_table_conforms(labelled):
    """An analysis would meet a missing column or another type on imported input."""
    assert labelled.tables.keys() == TABLES.keys()
    for name, table in labelled.tables.items():
        assert table.schema.equals(TABLES[name].arrow_schema()), name


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_rows_says_nothing(tmp_path, seed):
    """Fails when rows in another order are another program: operations can start together."""
    ends = [
        op(FIRST, "gc", 6, 0), op(FIRST, "layernorm-grads-all-reduce", 6, 0.5),
        op(FIRST, "grads-reduce-scatter", 6, 0.5), op(FIRST, "clip-main-grads", 6, 0.5),
    ]  # fmt: skip
    rows = [*PIPELINE, *ends]
    mixed = np.random.default_rng(seed).permutation(len(rows))
    one, other = (tmp_path / name for name in ("one", "other"))
    one.mkdir(), other.mkdir()
    in_order = import_trace(write_job(one, rows, META))
    shuffled = import_trace(write_job(other, [rows[i] for i in mixed], META))
    for name in in_order.tables:
        assert in_order.tables[name].to_pylist() == shuffled.tables[name].to_pylist(), name
