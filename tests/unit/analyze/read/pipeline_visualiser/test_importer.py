"""Pipeline visualiser dumps become tables: steps, spans by stage, memory, mesh, limits."""

import json

import pytest
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import TABLES

CONFIG = {"world_size": 2, "dp_size": 1, "tp_size": 1, "pp_size": 2, "vp_size": 1, "num_mbs": 2}


def iteration(total=10.0, memory=3.0, *, start=0.0, **lists):
    """Return one iteration: two passes of 1 ms forward, two of 2 ms backward, from ``start`` on."""
    plain = {
        "fwd_start": [start, start + 1],
        "fwd_end": [start + 1, start + 2],
        "bwd_start": [start + 2, start + 4],
        "bwd_end": [start + 4, start + 6],
    }
    return {"total": total, "memory": memory} | plain | lists


def write_job(folder, stages, config=CONFIG):
    """Write one file per pipeline rank, from its iterations by number."""
    for stage, iterations in stages.items():
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps(iterations))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def spans_of(trace, **where):
    """Return kind, stage, chunk, microbatch, start and duration of the spans of a rank and step."""
    rows = trace.frame("span")
    for column, value in where.items():
        rows = rows[rows[column] == value]
    columns = ["kind", "stage", "chunk", "microbatch", "start_ns", "dur_ns"]
    return [list(row) for row in rows[columns].astype({"kind": str}).itertuples(index=False)]


def test_passes_become_spans_of_their_stage(tmp_path):
    """Compute would be told of another stage or microbatch."""
    trace = import_trace(write_job(tmp_path, {0: {"3": iteration()}, 1: {"3": iteration()}}))
    assert spans_of(trace, rank=1, step=3) == [
        ["forward", 1, 0, 0, 0, 1_000_000],
        ["forward", 1, 0, 1, 1_000_000, 1_000_000],
        ["backward", 1, 0, 0, 2_000_000, 2_000_000],
        ["backward", 1, 0, 1, 4_000_000, 2_000_000],
    ]
    assert trace.origin == "pipeline_visualiser"
    assert trace.per_step_clock
    assert (trace.layout.pp, trace.run["world_size"], trace.run["microbatches"]) == (2, 2, 2)
    assert mentions(trace, "own time origin", "no waiting is reported")
    for name, table in trace.tables.items():
        assert table.schema.equals(TABLES[name].arrow_schema()), name


def test_a_step_lasts_as_long_as_on_the_first_stage(tmp_path):
    """Later stages, whose total is shorter, would seem to idle less than they do."""
    stages = {0: {"1": iteration(10.5)}, 1: {"1": iteration(8.0)}}
    steps = import_trace(write_job(tmp_path, stages)).frame("step")
    assert steps[["rank", "step", "start_ns", "dur_ns"]].to_numpy().tolist() == [
        [0, 1, 0, 10_500_000],
        [1, 1, 0, 10_500_000],
    ]


def test_no_pass_is_cut_off_by_a_short_total(tmp_path):
    """Compute after the stated end would vanish."""
    trace = import_trace(write_job(tmp_path, {0: {"1": iteration(5.0)}, 1: {"1": iteration()}}))
    assert trace.frame("step")["dur_ns"].tolist() == [6_000_000] * 2


def test_without_the_first_stage_the_next_one_decides_and_that_is_said(tmp_path):
    """The step time would silently be another one."""
    trace = import_trace(write_job(tmp_path, {1: {"1": iteration(8.0)}}))
    assert trace.ranks == (1,)
    assert trace.frame("step")["dur_ns"].tolist() == [8_000_000]
    assert mentions(trace, "pipeline rank 0 is not here")


def test_slow_iterations_at_the_start_are_no_steps(tmp_path):
    """One-time work of the first iteration would count as bubble."""
    totals = {1: 30.0, 2: 10.0, 3: 10.0, 4: 40.0, 5: 10.0}
    iterations = {str(number): iteration(total) for number, total in totals.items()}
    trace = import_trace(write_job(tmp_path, {0: iterations, 1: iterations}))
    assert sorted(set(trace.frame("step")["step"])) == [2, 3, 4, 5]
    assert set(trace.frame("span")["step"]) == {1, 2, 3, 4, 5}
    assert mentions(trace, "First iterations", "not used as steps: 1")


def test_memory_is_in_bytes_by_stage(tmp_path):
    """The stage that is nearly full would be another one."""
    stages = {0: {"1": iteration(memory=104.5)}, 1: {"1": iteration(memory=None)}}
    rows = import_trace(write_job(tmp_path, stages)).frame("memory")
    assert rows[["rank", "stage", "peak_bytes"]].to_numpy().tolist() == [[0, 0, 107_008 << 20]]


def test_a_split_backward_pass_keeps_its_parts(tmp_path):
    """The weight gradients of a zero-bubble schedule would be idle time."""
    lists = {"wgrad_start": [6.0, 7.0], "wgrad_end": [7.0, 8.0]}
    trace = import_trace(write_job(tmp_path, {0: {"1": iteration(**lists)}}))
    kinds = [row[0] for row in spans_of(trace, rank=0)]
    assert kinds == ["forward"] * 2 + ["backward_input"] * 2 + ["backward_weight"] * 2


def test_chunks_come_from_the_lists_or_are_unknown(tmp_path):
    """Virtual stages would be numbered by guess."""
    config = CONFIG | {"vp_size": 2, "num_mbs": 1}
    named = {f"{way}_{part}": [0, 1] for way in ("fwd", "bwd") for part in ("chunk", "minibatch")}
    trace = import_trace(
        write_job(tmp_path, {0: {"1": iteration()}, 1: {"1": iteration(**named)}}, config)
    )
    assert [row[1:4] for row in spans_of(trace, rank=0)] == [[-1, -1, -1]] * 4
    assert [row[1:4] for row in spans_of(trace, rank=1)] == [[1, 0, 0], [3, 1, 1]] * 2
    assert mentions(trace, "Several chunks", "unknown")


def test_a_stage_of_several_ranks_is_its_first_rank(tmp_path):
    """Ranks of a larger job would be numbered as if there were none beside them."""
    config = CONFIG | {"tp_size": 4, "world_size": 8, "micro_batches": 5}
    trace = import_trace(write_job(tmp_path, {1: {"1": iteration()}}, config))
    assert trace.ranks == (4,)
    assert trace.layout.coordinates(4)["pp"] == 1
    assert mentions(trace, "One rank of each stage is recorded")


def test_sizes_that_do_not_fit_leave_the_pipeline_only(tmp_path):
    """A mesh would be invented."""
    trace = import_trace(write_job(tmp_path, {0: {"1": iteration()}}, CONFIG | {"world_size": 64}))
    assert trace.layout.world_size == 2
    assert mentions(trace, "its world has 64", "Only the pipeline")


@pytest.mark.parametrize(
    "config", ["[1]", '{"pp_size": 0, "num_mbs": 1}', '{"pp_size": 2, "num_mbs":']
)
def test_a_damaged_config_is_said_and_the_files_decide(tmp_path, config):
    """A broken side file would hide the run."""
    write_job(tmp_path, {0: {"1": iteration()}, 1: {"1": iteration()}}, None)
    (tmp_path / "config.json").write_text(config)
    trace = import_trace(tmp_path)
    assert trace.layout.pp == 2
    assert mentions(trace, "sizes are those of the files")


def test_one_file_finds_the_config_beside_it(tmp_path):
    """A single dump would lose the sizes that lie beside it."""
    write_job(tmp_path, {0: {"1": iteration()}, 1: {"1": iteration()}})
    trace = import_trace(tmp_path / "pp_rank_1.json")
    assert (trace.ranks, trace.layout.pp) == ((1,), 2)


@pytest.mark.parametrize("fwd_end", [[1.0], [1.0, 0.5], [1.0, 2.0, 3.0]])
def test_passes_without_two_ends_in_order_are_counted(tmp_path, fwd_end):
    """A pass that never ended would vanish without a word."""
    trace = import_trace(write_job(tmp_path, {0: {"1": iteration(fwd_end=fwd_end)}}))
    assert len(spans_of(trace, rank=0)) == (4 if len(fwd_end) == 3 else 3)
    assert mentions(trace, "1 pass left out: no start, no end")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-30],
        lambda text: text.replace("10.0", "NaN"),
        lambda text: text.replace("10.0", "1e300"),
        lambda text: text.replace('"1"', '"one"'),
        lambda text: text.replace('"1"', f'"{10**30}"'),
        lambda text: text.replace('"fwd_end"', '"fwd_stop"'),
        lambda text: text.replace("10.0", "[" * 100_000),
    ],
)
def test_a_damaged_file_does_not_hide_the_other_stages(tmp_path, damage):
    """One torn dump would end in a traceback or lose the run."""
    write_job(tmp_path, {0: {"1": iteration()}, 1: {"1": iteration()}})
    torn = tmp_path / "pp_rank_1.json"
    torn.write_text(damage(torn.read_text()))
    trace = import_trace(tmp_path)
    assert trace.ranks == (0,)
    assert mentions(trace, "Left out", "pp_rank_1.json")
    with pytest.raises(TraceFormatError, match=r"pp_rank_1\.json: cannot be read"):
        import_trace(torn)


def test_files_that_cannot_be_one_run_are_refused(tmp_path):
    """Two runs would be added up, or a stage that does not exist be blamed."""
    write_job(tmp_path, {0: {"1": iteration()}, 5: {"1": iteration()}})
    with pytest.raises(TraceFormatError, match="pipeline rank 5"):
        import_trace(tmp_path)
    (tmp_path / "pp_rank_5.json").rename(tmp_path / "copy_rank0.json")
    with pytest.raises(TraceFormatError, match="pipeline rank 0, and so is"):
        import_trace(tmp_path)


def test_files_without_a_rank_or_a_pass_are_refused(tmp_path):
    """A stage would be guessed, or an empty run be reported."""
    (tmp_path / "dump.json").write_text(json.dumps({"1": iteration()}))
    with pytest.raises(TraceFormatError, match=r"names no pipeline rank.*pp_rank_<N>"):
        import_trace(tmp_path)
    empty = iteration(fwd_start=[], fwd_end=[], bwd_start=[], bwd_end=[])
    (tmp_path / "dump.json").rename(tmp_path / "pp_rank_0.json")
    (tmp_path / "pp_rank_0.json").write_text(json.dumps({"1": empty}))
    with pytest.raises(TraceFormatError, match="no forward or backward pass"):
        import_trace(tmp_path)


def test_an_iteration_or_a_pass_of_days_is_damage(tmp_path):
    """Fails when a length that nothing can have becomes the length of a step."""
    odd = iteration(total=1.8e10, fwd_end=[1.8e10, 2])
    stages = {0: {"3": iteration(), "4": odd}, 1: {"3": iteration(), "4": iteration()}}
    trace = import_trace(write_job(tmp_path, stages))
    assert trace.frame("step")["dur_ns"].max() <= 10_000_000
    assert mentions(trace, "1 pass left out")
    assert mentions(trace, "1 iteration longer than a day")
