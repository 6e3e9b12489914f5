"""Dumps of the flight recorder become tables: groups, collectives, transfers, progress."""

import gzip
import json
import pickle

import pytest
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.output.json import diagnosis_to_json
from meshscope.analyze.output.render import to_markdown, to_plain
from meshscope.analyze.output.text import diagnosis_document
from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import TABLES

TENSOR, PIPELINE = ("5", "TENSOR_MODEL_PARALLEL_GROUP"), ("7", "PIPELINE_MODEL_PARALLEL_GROUP")
MEMBERS = {"5": "[2, 3]", "7": "[1, 3]"}


def entry(seq, name="nccl:all_reduce", group=TENSOR, *, number=1, record=None, **changed):
    """Return one entry of the ring, scheduled and not complete."""
    is_p2p = "->" in name or "<-" in name
    return {
        "record_id": seq if record is None else record,
        "pg_id": number,
        "process_group": group,
        "collective_seq_id": 0 if is_p2p else seq,
        "p2p_seq_id": seq if is_p2p else 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + 1000 * seq,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[8, 8]],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 180000,
        "is_p2p": is_p2p,
        **changed,
    }


def dump(entries=(), status=None, groups=("5", "7"), **changed):
    """Return a dump; ``status`` is enqueued and completed by the number of the group."""
    names = dict([TENSOR, PIPELINE])
    return {
        "version": "2.9",
        "pg_config": {
            name: {"name": name, "desc": names[name], "ranks": MEMBERS[name]} for name in groups
        },
        "pg_status": {
            number: {"last_enqueued_collective": enqueued, "last_completed_collective": completed}
            for number, (enqueued, completed) in (status or {}).items()
        },
        "entries": list(entries),
        **changed,
    }


def write(folder, dumps, *, name="_dump_{}", form="pickle"):
    """Write one file a rank."""
    folder.mkdir(exist_ok=True)
    for rank, value in dumps.items():
        content = pickle.dumps(value, 2) if form == "pickle" else json.dumps(value).encode()
        (folder / name.format(rank)).write_bytes(content)
    return folder


def mentions(trace, *words):
    """Return whether one limit holds all the words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_collective_becomes_a_row(tmp_path, form):
    """Sizes, numbers or times of a dump would be wrong in one of its two forms."""
    done = {"time_discovered_started_ns": 1_700_000_000_000_000_500, "state": "completed"}
    done["time_discovered_completed_ns"] = 1_700_000_000_000_009_000
    entries = [entry(6, "nccl:_all_gather_base", **done), entry(7)]
    value = dump(entries, {"1": (7, 6), "2": (0, 0)})
    if form == "json":
        value = json.loads(json.dumps(value))
        for row in value["entries"]:
            row["time_discovered_started_ns"] = row["time_discovered_started_ns"] or 0
            row["time_discovered_completed_ns"] = row["time_discovered_completed_ns"] or 0
        for status in value["pg_status"].values():
            status.update({key: str(number) for key, number in status.items()})
    trace = import_trace(write(tmp_path, {3: value}, form=form))
    assert trace.origin == "flight_recorder"
    assert trace.ranks == (3,)
    gathered, reduced = trace.frame("collective").to_dict("records")
    assert (gathered["kind"], gathered["size_bytes"], gathered["seq"]) == ("all_gather", 128, 6)
    assert gathered["start_ns"] == 1_700_000_000_000_000_500
    assert gathered["end_ns"] == 1_700_000_000_000_009_000
    assert gathered["issue_ns"] == 1_700_000_000_000_006_000
    assert (gathered["source"], reduced["source"]) == ("imported", "host_issue")
    assert (reduced["kind"], reduced["size_bytes"], reduced["dtype"]) == (
        "all_reduce",
        64,
        "bfloat16",
    )
    assert reduced["end_ns"] is None or str(reduced["end_ns"]) == "<NA>"
    progress = trace.frame("progress").set_index("group_id")
    assert progress.loc["5", ["issued_seq", "completed_seq"]].tolist() == [7, 6]
    assert trace.tables.keys() == TABLES.keys()


def test_device_times_are_used_where_they_exist(tmp_path):
    """The exact length of a kernel would be replaced by when a watchdog looked."""
    done = {"time_discovered_started_ns": 1_700_000_000_000_000_000, "duration_ms": 0.25}
    done["time_discovered_completed_ns"] = 1_700_000_000_900_000_000
    trace = import_trace(write(tmp_path, {3: dump([entry(1, **done)])}))
    row = trace.frame("collective").iloc[0]
    assert row["source"] == "device"
    assert row["end_ns"] - row["start_ns"] == 250_000


def test_a_work_that_was_waited_for_is_complete_though_its_end_is_unknown(tmp_path):
    """Every collective of a gloo job would look as if it hung."""
    entries = [entry(seq, "gloo:all_reduce", retired=True) for seq in (1, 2)]
    trace = import_trace(write(tmp_path, {3: dump(entries)}))
    assert trace.frame("progress")[["issued_seq", "completed_seq"]].to_numpy().tolist()[0] == [2, 2]
    assert not diagnose(trace).findings or diagnose(trace).findings[0].kind != "hang"


@pytest.mark.parametrize("ended_after", [False, True])
def test_what_timed_out_on_a_device_has_not_ended(tmp_path, ended_after):
    """Fails when the rank whose own wait timed out is said to have gone on, and is blamed for the waiting of others."""
    done = {"state": "completed", "retired": True}
    entries = [entry(1, **done), entry(2, state="started", retired=True)]
    entries += [entry(3, **done)] if ended_after else []
    dumps = {
        2: dump(entries, {"1": (len(entries), len(entries))}, groups=("5",)),
        3: dump([entry(1, **done)], {"1": (1, 1)}, groups=("5",)),
    }
    trace = import_trace(write(tmp_path, dumps))
    progress = trace.frame("progress").set_index("rank")
    assert progress.loc[2, "completed_seq"] == (3 if ended_after else 1)
    if not ended_after:
        finding = diagnose(trace).findings[0]
        assert (finding.kind, finding.where["ranks"]) == ("hang", [3])


@pytest.mark.parametrize(
    "name",
    ["rank{}_pid4711.pkl", "node-17.rank_{}.trace", "fr_rank{}-of-8", "job-worker-1_trace_{}",
     "local_rank_0.rank_{}.json", "rank_{}/dump.pkl", "nccl_trace_rank_{}.2026-11-30"],
)  # fmt: skip
def test_the_rank_is_the_number_behind_that_word(tmp_path, name):
    """Fails when a process id, a host or a date in the name of a file is taken for its rank, and dumps are refused."""
    for rank in (2, 3):
        file = tmp_path / name.format(rank)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(pickle.dumps(dump([entry(1)], groups=("5",)), 2))
    assert import_trace(tmp_path).ranks == (2, 3)


def test_peers_are_global_ranks_and_ends_are_lined_up(tmp_path):
    """A transfer would be matched with another, or blamed on a rank that is not in it."""
    sent = {"retired": True, "state": "completed", "time_discovered_completed_ns": 5}
    first = [entry(n, "nccl:send 0->1", PIPELINE, number=2, **sent) for n in (1, 2)]
    one = dump([*first, entry(3, "nccl:send 0->1", PIPELINE, number=2)], groups=("7",))
    got = entry(9, "nccl:recv 1<-0", PIPELINE, number=2, **sent)
    other = dump([got, entry(12, "nccl:recv 1<-0", PIPELINE, number=2)])
    rows = import_trace(write(tmp_path, {1: one, 3: other})).frame("p2p")
    sends, receives = rows[rows["rank"] == 1], rows[rows["rank"] == 3]
    assert set(sends["peer"]) == {3}
    assert set(receives["peer"]) == {1}
    assert sends["direction"].astype(str).tolist() == ["send"] * 3
    assert sends["seq"].tolist() == [0, 1, 2]
    assert receives["seq"].tolist() == [1, 2]
    assert sends["size_bytes"].tolist() == [64, 64, 64]


def test_status_of_a_rank_with_an_empty_ring_is_named_by_order(tmp_path):
    """The rank that did nothing, the one that matters, would say nothing."""
    trace = import_trace(write(tmp_path, {3: dump(status={"4": (41, 41), "9": (12, 12)})}))
    progress = trace.frame("progress").set_index("group_id")["issued_seq"]
    assert progress.to_dict() == {"5": 41, "7": 12}


def test_an_order_that_an_entry_contradicts_is_not_believed(tmp_path):
    """Numbers of one group would be taken for those of another."""
    value = dump([entry(3, number=9)], {"4": (41, 41), "9": (3, 2)})
    trace = import_trace(write(tmp_path, {3: value}))
    assert trace.frame("progress")["issued_seq"].tolist() == [3]
    assert mentions(trace, "Rank 3", "some group statuses")


@pytest.mark.parametrize(
    "ranks", ["", "[]", "2, x", "[2, 2]", None, 7, "[2, ...]", "[2, 2000000000]", [[2]], [2, 3.5]]
)
def test_members_that_cannot_be_read_are_taken_from_use(tmp_path, ranks):
    """An odd list of ranks would end in a traceback, or in a group with wrong members."""
    dumps = {rank: dump([entry(1)], groups=("5",)) for rank in (2, 3)}
    for value in dumps.values():
        value["pg_config"]["5"]["ranks"] = ranks
    trace = import_trace(write(tmp_path, dumps))
    group = trace.frame("group").iloc[0]
    assert sorted(group["ranks"]) == [2, 3]
    assert group["description"] == TENSOR[1]
    assert mentions(trace, "do not say who is in 1 of 1 group")


@pytest.mark.parametrize("name", ["_dump_{}", "rank_{}.pkl", "nccl_trace_rank_{}.pickle.gz", "{}"])
def test_the_rank_is_the_number_at_the_end_of_the_name(tmp_path, name):
    """A dump would be taken for another rank's."""
    assert import_trace(write(tmp_path, {3: dump([entry(1)])}, name=name)).ranks == (3,)


def test_entries_alone_are_a_dump(tmp_path):
    """Fails when dumps of the first recorder, which have no header, are refused."""
    for rank in range(2):
        entries = [entry(1), entry(2)][: 2 - rank]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(entries))
    assert import_trace(tmp_path).frame("collective")["rank"].tolist() == [0, 0, 1]


def test_the_rank_inside_the_dump_comes_first(tmp_path):
    """A renamed file would change who is blamed."""
    assert import_trace(write(tmp_path, {17: dump([entry(1)], groups=("5",), rank=2)})).ranks == (
        2,
    )


def test_two_files_of_one_rank_are_refused(tmp_path):
    """Two dumps of different moments would be mixed."""
    write(tmp_path, {3: dump([entry(1)])})
    write(tmp_path, {3: dump([entry(2)])}, name="later_{}")
    with pytest.raises(TraceFormatError, match="rank 3") as caught:
        import_trace(tmp_path)
    assert "_dump_3" in str(caught.value)
    assert "later_3" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dump", dump([entry(1)]), "does not name its rank"),
        ("_dump_4", dump([entry(1)]), "is named rank 4, which is not in its own group 5"),
        (
            "_dump_3",
            dump()["pg_status"] | {"note": "profiling_name"},
            "is not a flight recorder dump",
        ),
    ],
)
def test_a_file_that_cannot_be_one_is_refused_in_one_line(tmp_path, name, value, words):
    """A rank would be made up."""
    (tmp_path / name).write_bytes(pickle.dumps(value, 2))
    with pytest.raises(TraceFormatError, match=words) as caught:
        import_trace(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda c: c[: len(c) // 2], lambda c: c + b"x" if c[:1] == b"{" else c[:-1]]
)
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_damaged_dump_is_named_and_the_rest_is_read(tmp_path, form, damage):
    """One torn file would make the dumps of the whole job unreadable."""
    write(tmp_path, {2: dump([entry(1)], groups=("5",)), 3: dump([entry(1)])}, form=form)
    torn = tmp_path / "_dump_2"
    torn.write_bytes(damage(torn.read_bytes()))
    trace = import_trace(tmp_path)
    assert trace.ranks == (3,)
    assert mentions(trace, "Left out", "_dump_2", "damaged")
    with pytest.raises(TraceFormatError, match="damaged"):
        import_trace(torn)


def test_a_compressed_dump_is_read_and_a_bomb_is_not(tmp_path):
    """A small file could fill the memory."""
    (tmp_path / "_dump_3").write_bytes(gzip.compress(pickle.dumps(dump([entry(1)]), 2)))
    assert import_trace(tmp_path).ranks == (3,)
    filler = b"\x80\x02X\x09\x00\x00\x00pg_config" + bytes((256 << 20) + 1)
    (tmp_path / "_dump_3").write_bytes(gzip.compress(filler, 1))
    with pytest.raises(TraceFormatError, match="larger than 64 MiB"):
        import_trace(tmp_path)


def test_entries_that_make_no_sense_are_counted(tmp_path):
    """Operations would vanish without a word."""
    odd = [
        {"profiling_name": 3},
        entry(2, process_group="x"),
        entry(-4),
        "text",
        entry(5),
        entry(5),
    ]
    trace = import_trace(write(tmp_path, {3: dump(odd)}))
    assert trace.frame("collective")["seq"].tolist() == [5]
    assert mentions(trace, "Rank 3", "3 operations without group or number")
    assert mentions(trace, "Rank 3", "coalesced")


def test_a_dump_is_diagnosed_and_reported_without_steps(tmp_path):
    """Report or JSON of a dump would fail, or show a step time that nobody measured."""
    stuck = dump([entry(7)], {"1": (7, 6), "2": (0, 0)})
    away = dump(status={"1": (6, 6)}, groups=("5",))
    result = diagnose(load_trace(write(tmp_path / "job", {3: stuck, 2: away})))
    assert result.findings[0].kind == "hang"
    assert result.findings[0].where["ranks"] == [2]
    assert result.waterfall == ()
    for render in (to_plain, to_markdown):
        text = render(diagnosis_document(result))
        assert "no steps" in text
        assert "Rank 2 did not arrive" in text
    assert diagnosis_to_json(result)["findings"][0]["where"]["ranks"] == [2]
    assert any("when it was made" in limit for limit in texts(result.limits))


def test_a_group_that_each_rank_names_differently_is_one(tmp_path):
    """Fails when ranks that made other groups before read as ranks that wait in groups of their own."""
    dumps = {}
    for rank in (0, 1, 2):
        name = str(10 + rank)
        rows = [entry(1, group=(name, "dp"), state="completed"), entry(2, group=(name, "dp"))]
        if rank == 2:
            rows[1]["input_sizes"] = [[5, 8]]
        groups = {name: {"name": name, "desc": "dp", "ranks": "[0, 1, 2]"}}
        dumps[rank] = dump(rows, pg_config=groups)
    trace = import_trace(write(tmp_path, dumps))
    assert trace.frame("group")["group_id"].astype(str).tolist() == ["10"]
    (finding,) = (one for one in diagnose(trace).findings if one.kind == "hang")
    assert (finding.cause, finding.where["ranks"]) == ("mismatch_size", [2])


def coalesced(seq, record, **state):
    """Return the entry that stands for a coalesced call: no sizes, but the state of all its parts."""
    none = {"input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": []}
    is_p2p = state.pop("is_p2p", True)
    numbers = {"p2p_seq_id": seq} if is_p2p else {"collective_seq_id": seq}
    return entry(
        seq,
        "nccl:coalesced",
        PIPELINE,
        number=2,
        record=record,
        is_p2p=is_p2p,
        **numbers,
        **none,
        **state,
    )


DONE = {
    "state": "completed",
    "retired": True,
    "time_discovered_completed_ns": 1_700_000_000_000_900_000,
}


def batches(rank, peer, *ends):
    """Return batches of a send and a receive; the recorder follows their calls only, so they remain scheduled."""
    rows = []
    for number, state in enumerate(ends, 1):
        for name in (f"nccl:send {rank}->{peer}", f"nccl:recv {rank}<-{peer}"):
            rows.append(entry(number, name, PIPELINE, number=2, record=len(rows)))
        rows.append(coalesced(number, len(rows), **state))
    return dump(rows, groups=("7",))


def test_parts_of_a_batch_have_ended_when_their_call_has(tmp_path):
    """Fails when every send that a healthy pipeline ever batched reads as one that never ended."""
    found = import_trace(
        write(tmp_path, {1: batches(0, 1, DONE, DONE, {}), 3: batches(1, 0, DONE, DONE, {})})
    )
    rows = found.frame("p2p")
    assert (
        rows.sort_values(["rank", "event_id"])["end_ns"].notna().tolist()
        == ([True] * 4 + [False] * 2) * 2
    )
    assert not mentions(found, "without group or number")


def test_the_line_of_a_message_is_that_of_its_own_call(tmp_path):
    """Fails when the line of a collective that has the same number by chance is shown for a message."""
    frames = {
        name: [{"name": name, "filename": "/app/train.py", "line": line}]
        for line, name in enumerate(("reduce", "receive"), 7)
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    own = {"group": ("0", "default_pg"), "number": 0}
    reduced = entry(1, record=0, frames=frames["reduce"], **own, **DONE)
    sent, got, received = (
        entry(seq, name, record=seq, frames=frames["receive"], **own, **state)
        for seq, name, state in (
            (1, "nccl:send 0->1", DONE), (1, "nccl:recv 1<-0", DONE), (2, "nccl:recv 1<-0", {}),
        )
    )  # fmt: skip
    dumps = {
        rank: dump([reduced, *more], groups=(), pg_config=config)
        for rank, more in enumerate(([sent], [got, received]))
    }
    said = " ".join(
        str(one) for one in diagnose(import_trace(write(tmp_path, dumps))).findings[0].evidence
    )
    assert "receive (/app/train.py:8)" in said
    assert "reduce" not in said.replace("all_reduce", "")


def test_a_ring_of_batches_is_no_deadlock(tmp_path):
    """Fails when ranks that send and receive in one batch are said to wait for each other in a circle."""
    claims = [
        str(one.claim)
        for one in diagnose(
            import_trace(write(tmp_path, {1: batches(0, 1, DONE, {}), 3: batches(1, 0, DONE, {})}))
        ).findings
        if one.kind == "hang"
    ]
    assert len(claims) == 1
    assert "Deadlock" not in claims[0]


def test_two_messages_of_a_batch_to_one_peer_are_two(tmp_path):
    """Fails when a receiver that takes them one by one is compared with the wrong one of them."""
    send, receive = "nccl:send 0->1", "nccl:recv 1<-0"
    rows = [
        entry(1, send, PIPELINE, number=2, record=0),
        entry(1, send, PIPELINE, number=2, record=1),
    ]
    rows[1]["input_sizes"] = [[2, 8]]
    got = [entry(seq, receive, PIPELINE, number=2) for seq in (1, 2)]
    got[1]["input_sizes"] = [[2, 8]]
    dumps = {1: dump([*rows, coalesced(1, 2)], groups=("7",)), 3: dump(got, groups=("7",))}
    trace = import_trace(write(tmp_path, dumps))
    assert trace.frame("p2p").groupby("rank")["size_bytes"].apply(list).tolist() == [[64, 32]] * 2
    assert "mismatch_transfer" not in {one.cause for one in diagnose(trace).findings}


def test_all_parts_of_a_coalesced_call_are_compared(tmp_path):
    """Fails when the second tensor of a coalesced all-reduce differs, and the call is said to agree."""
    dumps = {}
    for rank in (2, 3):
        parts = [entry(1, record=0, state="completed")]
        parts += [
            entry(2, record=1 + at, input_sizes=[[size]]) for at, size in enumerate((4, 8 + rank))
        ]
        dumps[rank] = dump(parts, groups=("5",))
    (finding,) = (
        one for one in diagnose(import_trace(write(tmp_path, dumps))).findings if one.kind == "hang"
    )
    assert (finding.cause, finding.where["ranks"]) == ("mismatch_size", [2, 3])
    assert ["28 bytes" in str(one) or "30 bytes" in str(one) for one in finding.evidence[:2]] == [
        True
    ] * 2


def of_world(rank, issued, completed, *, seen=True):
    """Return a dump of a group of two: reductions up to a number, the first ones complete, ends seen or not."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    entries = []
    for seq in range(1, issued + 1):
        done = {"retired": True, "state": "completed" if seen else "started"}
        done |= {"time_discovered_completed_ns": 1_700_000_000_000_009_000} if seen else {}
        changed = done if seq <= completed else {}
        entries.append(entry(seq, group=("0", "default_pg"), number=0, record=seq - 1, **changed))
    return dump(entries, {"0": (issued, completed)}, groups=(), pg_config=config, rank=rank)


@pytest.mark.parametrize(("seen", "ranks"), [(True, (0,)), (False, (0, 1))])
def test_a_dump_from_before_the_others_is_left_out(tmp_path, seen, ranks):
    """Fails when the rank whose dump is older is said not to have arrived, or one whose peers gave up is no more."""
    dumps = {0: of_world(0, 6, 5, seen=seen), 1: of_world(1, 3, 3)}
    trace = import_trace(write(tmp_path, dumps))
    assert trace.ranks == ranks
    assert mentions(trace, "dump of rank 1", "made before the others") is seen


@pytest.mark.parametrize(
    ("first", "claim"), [(0, "hang.deadlock_transfer"), (7, "hang.stuck_unknown")]
)
def test_a_ring_that_lost_nothing_tells_what_its_rank_never_issued(tmp_path, first, claim):
    """Fails when all members are said to have issued what only one did, because transfers use the group too."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    reduced = entry(1, group=("0", "default_pg"), number=0, record=first)
    received = entry(1, "nccl:recv 1<-0", ("0", "default_pg"), number=0, record=first)
    dumps = {
        rank: dump([own], {"0": (1, 0)}, groups=(), pg_config=config)
        for rank, own in enumerate((reduced, received))
    }
    found = diagnose(import_trace(write(tmp_path, dumps))).findings[0]
    assert found.claim.code == claim


def test_a_rank_without_a_dump_is_not_said_to_have_issued_anything(tmp_path):
    """Fails when the members of a group are those that left a dump, and all of these wait for one that did not."""
    reduced = {
        "record_id": 0, "pg_id": 0, "seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "started",
        "time_created_ns": 1_700_000_000_000_000_000, "input_sizes": [[4]], "output_sizes": [[4]],
    }  # fmt: skip
    trace = import_trace(write(tmp_path, {rank: [reduced] for rank in (0, 1, 3)}))
    found = diagnose(trace).findings[0]
    assert (found.claim.code, found.claim.values["unknown"]) == ("hang.stuck_unknown", [2])


def test_lines_of_one_operation_are_told_with_their_ranks(tmp_path):
    """Fails when a rank that stands at another line, in an operation of the same size, is not to be found."""
    dumps = {}
    for rank, line in enumerate((200, 250)):
        dumps[rank] = of_world(rank, 1, 0)
        dumps[rank]["entries"][0]["frames"] = [{"name": "f", "filename": "t.py", "line": line}]
    (finding, *_) = diagnose(import_trace(write(tmp_path, dumps))).findings
    said = " ".join(map(str, finding.evidence))
    assert "f (t.py:200) on rank 0 and f (t.py:250) on rank 1" in said
