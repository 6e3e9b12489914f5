"""Members that differ in an operation that ended: a possible reason of what stands still later."""

import pickle

import pytest

from meshscope.analyze import diagnose, load_trace


def dump(rank, *, numel=4, dtype="Float", at=2, late=False, later=4):
    """Return a dump of six all_reduces of which 5 ended; rank 2 differs in number ``at``."""
    last = 5 if late and rank == 3 else 6
    entries = []
    for seq in range(1, last + 1):
        odd = rank == 2 and seq == at
        size = later if rank == 2 and seq == 6 else numel if odd else 4
        entries.append(
            {
                "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"),
                "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
                "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18 + seq * 10**6,
                "input_sizes": [[size]], "output_sizes": [[size]],
                "input_dtypes": [dtype if odd else "Float"], "output_dtypes": ["Float"],
                "state": "completed" if seq < 6 else "started", "retired": seq < 6, "is_p2p": False,
                "frames": [{"name": "train_step", "filename": "train.py", "line": 70 + odd}],
            }
        )  # fmt: skip
    return {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": last, "last_completed_collective": 5}},
        "entries": entries,
    }


def findings(folder, **how):
    """Return what is found in the dumps of four ranks."""
    for rank in range(4):
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump(rank, **how)))
    return diagnose(load_trace(folder)).findings


def test_it_is_named_beside_the_hang(tmp_path):
    """Fails when the sizes that differed before a hang are not shown with it."""
    hang, reason = findings(tmp_path, numel=8, late=True)[:2]
    assert (hang.severity, hang.where["ranks"], hang.cause) == ("critical", [3], None)
    assert (reason.severity, reason.where["rank"], reason.cause) == ("warning", 2, "mismatch_size")
    assert "all_reduce of 32 bytes instead of all_reduce of 16 bytes as number 2" in str(
        reason.claim
    )
    said = " | ".join(map(str, reason.evidence))
    assert "ended all the same" in said
    assert "train.py:71" in said
    assert "train.py:70" in said


def test_a_type_that_differed_is_named_too(tmp_path):
    """Fails when only sizes are compared in what ended."""
    assert [f.cause for f in findings(tmp_path, dtype="Int")][1:] == ["mismatch_dtype"]


def test_one_that_did_not_end_is_named_first_and_nothing_false_of_it(tmp_path):
    """Fails when an early difference hides the one that the job stands in."""
    first, second = findings(tmp_path, numel=8, later=16)
    assert (first.severity, second.severity) == ("critical", "warning")
    assert "as number 6" in str(first.claim)
    assert "agree" not in " ".join(map(str, first.evidence))


@pytest.mark.parametrize("how", [{}, {"late": True}])
def test_members_that_agree_give_none(tmp_path, how):
    """Fails when a healthy operation is called a reason."""
    assert [f.cause for f in findings(tmp_path, **how)] == [None]


@pytest.mark.parametrize("group", ["0", None])
def test_dumps_of_the_first_versions_name_who_did_not_arrive(tmp_path, group):
    """Fails when a dump that numbers with ``seq_id`` and names its group plainly is read as empty."""
    for rank in range(4):
        old = dump(rank, late=True)
        for entry in old["entries"]:
            entry["seq_id"] = entry.pop("collective_seq_id")
            entry["process_group"] = group
            for key in ("p2p_seq_id", "is_p2p", "input_dtypes", "output_dtypes"):
                del entry[key]
        value = {"version": "1.5", "entries": old["entries"]}
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(value))
    (found,) = diagnose(load_trace(tmp_path)).findings
    assert found.where["ranks"] == [3]
