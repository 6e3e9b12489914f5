"""Collectives whose members issued different things: the one that differs is named, and never a victim."""

import pickle
from signal import SIGABRT, SIGTERM

import pytest
from tests.tables import trace_of

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.account.hangs.mismatch import mismatches
from meshscope.analyze.findings.rules.hang import hang_findings

BASE = [("all_reduce", 16384, "float32"), ("all_reduce", 256, "float32")]
USUAL = ("all_reduce", 4000, "float32")


def broken_off(tails, *, done=28, statuses=None, completed=None):
    """Return a job that agrees on operations 0 to ``done`` - 1, and then does what each rank's tail says."""
    collective, progress = [], []
    for rank, tail in tails.items():
        issues = [BASE[seq % 2] for seq in range(done)] + list(tail)
        for seq, (kind, size, dtype, *root) in enumerate(issues):
            collective.append(
                {
                    "rank": rank, "group_id": "a", "seq": seq, "event_id": seq, "kind": kind,
                    "size_bytes": size, "dtype": dtype, "root": root[0] if root else None, "source": "host_issue", "issue_ns": seq * 1000,
                    "start_ns": seq * 1000, "end_ns": seq * 1000 + 9 if seq < done else None,
                }
            )  # fmt: skip
        progress.append(
            {
                "rank": rank, "group_id": "a", "issued_seq": len(issues) - 1, "completed_seq": completed,
                "ended_ns": 10**12 + rank, "wait_status": (statuses or {}).get(rank),
            }
        )  # fmt: skip
    ranks = tuple(tails)
    groups = [{"group_id": "a", "ranks": list(ranks)}]
    return trace_of(ranks=ranks, group=groups, progress=progress, collective=collective)


def of_rank_2(*tail, others=(USUAL,)):
    """Return a job of four ranks in which rank 2 does something of its own."""
    return broken_off({rank: tail if rank == 2 else others for rank in range(4)})


@pytest.mark.parametrize(
    ("own", "others", "what"),
    [
        ([("all_reduce", 8000, "float32")], [USUAL], "size"),
        ([("broadcast", 4000, "float32")], [USUAL], "kind"),
        ([("all_reduce", 2000, "bfloat16")], [USUAL], "dtype"),
        ([("broadcast", 64, "int64", "1")], [("broadcast", 64, "int64", "0")], "root"),
        ([BASE[0]], [USUAL], "left_out"),
        ([BASE[0]], [USUAL, BASE[0]], "left_out"),
        ([("barrier", 0, None), USUAL], [USUAL], "extra"),
        ([("all_gather", 64, "int64"), USUAL], [USUAL, ("all_gather", 64, "int64")], "order"),
    ],
)
def test_who_differs_and_in_what(own, others, what):
    """Fails when a job that hangs over different arguments is said to be stuck on all of its links."""
    trace = of_rank_2(*own, others=others)
    (found,) = mismatches(trace)
    assert (found.seq, list(found.different), found.what) == (28, [2], what)
    (finding,) = hang_findings(trace)
    assert (finding.kind, finding.where["rank"], finding.severity) == ("hang", 2, "critical")
    assert finding.cause == f"mismatch_{what}"


def test_the_roots_that_members_name_are_told():
    """Fails when members that broadcast from different ranks are told to compare their devices."""
    trace = of_rank_2(("broadcast", 64, "int64", "1"), others=[("broadcast", 64, "int64", "0")])
    (finding,) = hang_findings(trace)
    assert str(finding.claim).startswith(
        "Rank 2 issued broadcast with root 1 instead of broadcast with root 0 as number 28"
    )


def test_a_root_that_was_not_recorded_differs_from_none():
    """Fails when a rank with too many roots to note them is said to differ."""
    trace = of_rank_2(("broadcast", 64, "int64"), others=[("broadcast", 64, "int64", "0")])
    assert mismatches(trace) == []


def test_a_victim_whose_socket_broke_is_not_named():
    """Fails when a rank that the mismatch of another one ended is said to have crashed first."""
    tails = {0: [USUAL], 1: [USUAL], 2: [("all_reduce", 8000, "float32")], 3: [USUAL]}
    trace = broken_off(tails, statuses={1: SIGABRT, 0: SIGTERM, 2: SIGTERM, 3: SIGTERM})
    (finding,) = hang_findings(trace)
    assert (finding.kind, finding.where["ranks"]) == ("hang", [2])
    own, usual = finding.claim.values["own"], finding.claim.values["usual"]
    assert (own.values["size_bytes"], usual.values["size_bytes"]) == (8000, 4000)


def test_two_members_that_differ_are_both_named():
    """Fails when one of two ranks is called wrong by a coin."""
    trace = broken_off({0: [USUAL], 1: [("broadcast", 4000, "float32")]})
    (found,) = mismatches(trace)
    assert (list(found.different), found.usual_ranks) == ([0, 1], ())


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_member_that_gives_or_gets_another_size_is_named(kind):
    """Fails when the rank whose buffer ended a gather or scatter is said to have died, without the reason."""
    (found,) = mismatches(of_rank_2((kind, 9000, "float32"), others=((kind, 4000, "float32"),)))
    assert (list(found.different), found.what) == ([2], "size")


@pytest.mark.parametrize(
    "own", [("all_to_all", 9000, "float32"), ("all_to_all", 0, None), ("gather", 0, None)]
)
def test_sizes_that_may_differ_are_no_mismatch(own):
    """Fails when unequal splits, or a size that is not known, are called a fault."""
    usual = (own[0], 4000, own[2])
    assert mismatches(of_rank_2(own, others=(usual,))) == []


def test_a_difference_in_what_has_ended_is_not_why_the_job_stands_still():
    """Fails when records of one rank that are shifted by a loss name it for a hang elsewhere."""
    trace = of_rank_2(("all_reduce", 8000, "float32"))
    ended = trace.frame("collective").assign(end_ns=1)
    assert mismatches(trace_of(
        ranks=trace.ranks,
        group=[{"group_id": "a", "ranks": list(trace.ranks)}],
        progress=trace.frame("progress").drop(columns=["ended_by"]).to_dict("records"),
        collective=ended.drop(columns=["axis", "wait_start_ns", "wait_end_ns"]).to_dict("records"),
    )) == []  # fmt: skip


def dump(rank, sizes, *, output=4, name="all_reduce", line=100):
    """Return the dump of a rank: operation 1 is complete, 2 is not."""
    entries = [
        {
            "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq,
            "p2p_seq_id": 0, "op_id": seq, "profiling_name": f"nccl:{name if seq == 2 else 'all_reduce'}",
            "time_created_ns": 10**18 + seq, "input_sizes": [[size]], "output_sizes": [[output]],
            "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            "state": "completed" if seq == 1 else "started", "retired": seq == 1, "is_p2p": False,
            "frames": [
                {"name": "all_reduce", "filename": "/x/torch/distributed/c10d.py", "line": 9},
                {"name": "train_step", "filename": "train.py", "line": line},
            ],
        }
        for seq, size in enumerate(sizes, 1)
    ]  # fmt: skip
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
    status = {"last_enqueued_collective": len(sizes), "last_completed_collective": 1}
    return {
        "version": "2.9",
        "pg_config": {"0": group},
        "pg_status": {"0": status},
        "entries": entries,
    }


def written(folder, dumps):
    """Write dumps, one a rank, and return what is found in them first."""
    for rank, value in dumps.items():
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(value))
    return diagnose(load_trace(folder)).findings[0]


def test_file_and_line_of_a_flight_recorder(tmp_path):
    """Fails when the frames of a dump are not read, so that nobody knows which call it was."""
    dumps = {r: dump(r, [4, 8 if r == 2 else 4], line=250 if r == 2 else 200) for r in range(4)}
    found = written(tmp_path, dumps)
    own, usual = found.claim.values["own"], found.claim.values["usual"]
    assert (own.values["size_bytes"], usual.values["size_bytes"]) == (32, 16)
    text = " | ".join(map(str, found.evidence))
    assert "Rank 2: all_reduce of 32 bytes (float32), at train_step (train.py:250)" in text
    assert found.remedy.code == "mismatch.remedy_two_lines"
    assert "at train_step (train.py:200)" in text


def test_pairs_of_an_all_to_all(tmp_path):
    """Fails when a rank that sends more than the others expect goes unnamed."""
    dumps = {r: dump(r, [4, 6 if r == 2 else 4], name="all_to_all") for r in range(4)}
    found = written(tmp_path, dumps)
    assert (found.cause, found.where["rank"]) == ("mismatch_splits", 2)
    assert "send 72 bytes and expect 64" in str(found.claim)


@pytest.mark.parametrize(("own", "named"), [([4, 5, 4, 3], [2]), ([4, 4, 4, 4], None)])
def test_a_pair_of_an_all_to_all_of_lists_whose_sum_is_right(tmp_path, own, named):
    """Fails when a rank sends one member too much and another too little, and only sums are compared."""
    dumps = {rank: dump(rank, [4, 4], name="all_to_all") for rank in range(4)}
    for rank, value in dumps.items():
        sizes = own if rank == 2 else [4, 4, 4, 4]
        last = value["entries"][-1]
        last["input_sizes"], last["output_sizes"] = [[size] for size in sizes], [[4]] * 4
        last["input_dtypes"] = last["output_dtypes"] = ["Float"] * 4
    found = written(tmp_path, dumps)
    assert (found.cause, found.where["ranks"]) == (
        ("mismatch_splits", named) if named else (None, [0, 1, 2, 3])
    )
    if named:
        words = "Rank 2 sends 20 bytes to rank 1"
        assert words in str(found.claim)
        assert "16 are expected" in str(found.claim)


@pytest.mark.parametrize(("dtypes", "cause"), [([], None), (["Mystery"], "mismatch_dtype")])
def test_pairs_of_unknown_types_are_not_compared(tmp_path, dtypes, cause):
    """Fails when a rank whose element type is not in its dump is said to send 0 bytes."""
    dumps = {rank: dump(rank, [4, 4], name="all_to_all") for rank in range(4)}
    for rank, value in dumps.items():
        last = value["entries"][-1]
        last["input_sizes"] = last["output_sizes"] = [[4]] * 4
        last["input_dtypes"] = last["output_dtypes"] = dtypes if rank == 2 else ["Float"] * 4
    assert written(tmp_path, dumps).cause == cause


@pytest.mark.parametrize("own", [8, 4])
def test_dumps_without_types_are_compared_by_elements(tmp_path, own):
    """Fails when dumps of versions that keep no types hide which rank gives another size."""
    dumps = {rank: dump(rank, [4, own if rank == 2 else 4]) for rank in range(4)}
    for value in dumps.values():
        value["version"] = "2.2"
        for entry in value["entries"]:
            del entry["input_dtypes"], entry["output_dtypes"]
    found = written(tmp_path, dumps)
    if own == 4:
        assert found.cause is None
        return
    assert (found.cause, found.where["rank"]) == ("mismatch_size", 2)
    assert "all_reduce of 8 elements instead of all_reduce of 4 elements" in str(found.claim)
    assert "Rank 2: all_reduce of 8 elements, at train_step" in str(found.evidence[0])


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ([[4], [5], [4], [3]], "Rank 2 sends 5 elements to rank 1 in all_to_all 2"),
        ([[6]], "members send 18 elements and expect 16"),
        ([[4], [4], [4], [4]], None),
    ],
)
def test_pairs_of_dumps_without_types_are_compared_by_elements(tmp_path, own, words):
    """Fails when dumps of versions that keep no types hide a pair of an all-to-all that differs."""
    dumps = {rank: dump(rank, [4, 4], name="all_to_all") for rank in range(4)}
    for rank, value in dumps.items():
        value["version"] = "2.2"
        for entry in value["entries"]:
            del entry["input_dtypes"], entry["output_dtypes"]
        usual = [[4]] * len(own)
        last = value["entries"][-1]
        last["input_sizes"], last["output_sizes"] = own if rank == 2 else usual, usual
    found = written(tmp_path, dumps)
    assert found.cause == ("mismatch_splits" if words else None)
    if words:
        assert found.where["ranks"] == [2]
        assert words in str(found.claim)


def transfer(rank, name, size, line):
    """Return the dump of a rank that has one transfer open."""
    value = dump(rank, [4, size], line=line)
    last = value["entries"][-1]
    last |= {"is_p2p": True, "p2p_seq_id": 1, "profiling_name": f"nccl:{name}"}
    last["output_sizes"] = last["input_sizes"]
    value["pg_status"] = {"0": {"last_enqueued_collective": 1, "last_completed_collective": 1}}
    return value


@pytest.mark.parametrize(
    ("of_1", "of_2", "cause"),
    [
        (("send 1->2", 8, 7), ("recv 2<-1", 4, 9), "mismatch_transfer"),
        (("send 1->2", 4, 7), ("recv 2<-0", 4, 9), "mismatch_peer"),
    ],
)
def test_file_and_line_of_both_ends_of_a_transfer(tmp_path, of_1, of_2, cause):
    """Fails when two ranks are named, and nobody knows which of their calls it was."""
    dumps = {0: dump(0, [4]), 1: transfer(1, *of_1), 2: transfer(2, *of_2), 3: dump(3, [4])}
    found = written(tmp_path, dumps)
    assert (found.cause, found.where["ranks"]) == (cause, [1, 2])
    text = " | ".join(map(str, found.evidence))
    assert "at train_step (train.py:7)" in text
    assert "at train_step (train.py:9)" in text


@pytest.mark.parametrize("late", [[3], []])
def test_a_device_that_has_not_begun_what_others_have_is_named(tmp_path, late):
    """Fails when a device that is held by earlier work reads as a link that is stuck on all ranks."""
    dumps = {rank: dump(rank, [4, 4]) for rank in range(4)}
    for rank in late:
        dumps[rank]["entries"][-1]["state"] = "scheduled"
    text = " | ".join(map(str, written(tmp_path, dumps).evidence))
    assert ("Not begun on the device of rank 3, but on ranks 0, 1 and 2" in text) == bool(late)
    assert "train_step (train.py:100)" in text


def test_what_was_issued_last_is_not_after_the_last_record(tmp_path):
    """Fails when rounding of wall-clock times shows a time below 0."""
    evidence = written(tmp_path, {rank: dump(rank, [4, 4]) for rank in range(4)}).evidence
    (oldest,) = (one for one in evidence if one.code.startswith("hang.oldest"))
    assert oldest.code == "hang.oldest_last_at"
    assert str(oldest).endswith("no rank recorded anything later")


def test_the_line_of_what_the_others_wait_in(tmp_path):
    """Fails when a rank that did not arrive is named without the call that it is missing in."""
    found = written(tmp_path, {r: dump(r, [4] if r == 3 else [4, 4]) for r in range(4)})
    assert (found.where["ranks"], found.cause) == ([3], None)
    assert any("train_step (train.py:100)" in str(fact) for fact in found.evidence)


@pytest.mark.parametrize(
    ("ended", "steps", "cause", "claim"),
    [
        ([2], (5, 5), "fewer_batches", "Rank 2 ended normally with fewer batches: 3 ranks still waited for more"),
        ([0, 1, 3], (5, 5), "fewer_batches", "Rank 2 went on to more batches: 3 ranks had ended normally"),
        ([0, 1, 3], (5, 4), "mismatch_extra", "Rank 2 issued more collectives in as many steps: 3 ranks had ended normally"),
        ([2], (5, 4), "mismatch_left_out", "Rank 2 issued fewer collectives in as many steps, and ended: 3 ranks still waited"),
    ],
)  # fmt: skip
def test_a_rank_with_fewer_or_more_batches_than_the_others(ended, steps, cause, claim):
    """Fails when a rank that had another number of batches is said to hang, or when the others are named for it."""
    tails = {rank: [] if rank in ended else [BASE[0]] for rank in range(4)}
    statuses = {rank: 0 if rank in ended else 256 for rank in range(4)}
    trace = broken_off(tails, statuses=statuses)
    rows = trace.frame("progress").astype(object)
    rows.loc[rows["rank"].isin(ended), ["completed_seq", "ended_ns"]] = [27, 10**12 - 1]
    progress = rows.where(rows.notna(), None).drop(columns=["ended_by"]).to_dict("records")
    columns = ["axis", "wait_start_ns", "wait_end_ns"]
    collective = trace.frame("collective").astype(object).drop(columns=columns)
    trace = trace_of(
        ranks=trace.ranks,
        group=[{"group_id": "a", "ranks": [0, 1, 2, 3]}],
        progress=progress,
        collective=collective.where(collective.notna(), None).to_dict("records"),
        step=[
            {"rank": rank, "step": step, "start_ns": step, "dur_ns": 1}
            for rank in range(4)
            for step in range(steps[rank not in ended])
        ],
    )
    (finding,) = hang_findings(trace)
    assert (finding.kind, finding.cause, finding.where["ranks"]) == ("hang", cause, [2])
    assert str(finding.claim) == claim
    is_batch = cause == "fewer_batches"
    assert all((word in str(finding.remedy)) is is_batch for word in ("Join", "sampler"))


def stepped(tails, *, ended, shift=0):
    """Return a job of steps of two operations in which rank 2 differs in one that ended, and in one that is open."""
    trace = broken_off(tails)
    rows = trace.tables["collective"].to_pylist()
    for row in rows:
        row["step"] = row["seq"] // 2
        if row["rank"] == 2 and row["seq"] == ended:
            row["size_bytes"] *= 2
        if row["rank"] == 2 and row["seq"] > ended:
            row["seq"] += shift
    others = {name: trace.tables[name].to_pylist() for name in ("group", "progress")}
    return trace_of(ranks=tuple(tails), collective=rows, **others)


TAILS = {rank: [("all_reduce", 8000, "float32") if rank == 2 else USUAL] for rank in range(4)}


def test_what_ended_before_does_not_hide_where_the_job_stands():
    """Fails when the first victim of a mismatch is named, because members had differed before in vain."""
    (found,) = mismatches(stepped(TAILS, ended=9))
    assert (found.seq, list(found.different), found.is_first) == (28, [2], False)
    (finding,) = hang_findings(stepped(TAILS, ended=9))
    assert "mismatch.agreed" not in {line.code for line in finding.evidence}


def test_a_count_that_went_astray_names_nobody():
    """Fails when a rank whose numbers are shifted is said to have issued something else."""
    assert mismatches(stepped(TAILS, ended=9, shift=1)) == []
