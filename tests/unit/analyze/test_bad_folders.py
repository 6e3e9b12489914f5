"""Hostile folders, archives and names: nothing outside is read, nothing hangs, all is said."""

import io
import json
import os
import re
import subprocess
import tarfile

import pytest
from tests.fuzz.places import put
from tests.fuzz.seeds import SEEDS, write
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.load.ingest import understood
from meshscope.analyze.output.json import collectives_to_json
from meshscope.analyze.output.render import to_markdown, to_plain
from meshscope.analyze.output.text import collectives_document, diagnosis_document
from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import MeshscopeError

KINETO = SEEDS["kineto"]()


def mentions(limits, *words):
    """Say whether one limit has all these words."""
    return any(all(word in limit for word in words) for limit in limits)


def packed(members, mode="w"):
    """Return a tar archive of files by name, or of members of other kinds."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                archive.addfile(member)
    return sink.getvalue()


@pytest.mark.parametrize("what", ["pipe", "device", "socket", "folder"])
def test_what_is_no_file_in_a_folder_of_traces(tmp_path, monkeypatch, what):
    """A pipe among the traces would block the reader for ever."""
    folder = write(tmp_path / "traces", KINETO)
    put(folder / "rank2.json", what, tmp_path, monkeypatch)
    trace = import_trace(folder)
    assert trace.ranks == (0, 1)
    assert (
        mentions(texts(trace.limits), "left out")
        or mentions(texts(trace.limits), "not followed")
        or (what == "folder")
    )


@pytest.mark.parametrize("of_folder", [False, True])
def test_links_that_lead_out_are_not_followed(tmp_path, of_folder):
    """A folder from somebody else could have any file of its reader shown in a report."""
    folder = write(tmp_path / "traces", {"rank0.json": KINETO["rank0.json"]})
    outside = write(tmp_path / "outside", {"rank1.json": KINETO["rank1.json"]})
    if of_folder:
        (folder / "more").symlink_to(outside)
    else:
        (folder / "rank1.json").symlink_to(outside / "rank1.json")
    trace = import_trace(folder)
    assert trace.ranks == (0,)
    assert mentions(texts(trace.limits), "1 link", "not followed")


def test_links_in_circles_end(tmp_path):
    """A link to its own folder would be followed for ever."""
    folder = write(tmp_path / "traces", KINETO)
    (folder / "again").symlink_to(folder)
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert import_trace(folder).ranks == (0, 1)


def test_folders_in_folders_a_thousand_deep(tmp_path):
    """Folders in folders would end in a traceback."""
    folder = write(tmp_path / "traces", KINETO)
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(1050):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    try:
        assert import_trace(folder).ranks == (0, 1)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)  # shutil gives up at that depth


NAMES = [b"rank1\x1b[31m.json", b"rank1\n.json", "rank1\u202e.json".encode(), b"rank1\xff.json"]


@pytest.mark.parametrize("name", NAMES)
def test_names_reach_no_terminal_as_they_are(tmp_path, name):
    """A file name could clear the screen, forge a line, or end the program when it is printed."""
    with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
        file.write(KINETO["rank1.json"][:60])
    with pytest.raises(MeshscopeError) as refused:
        import_trace(tmp_path)
    assert str(refused.value).isprintable()
    trace = load_trace(write(tmp_path, {"rank0.json": KINETO["rank0.json"]}))
    assert mentions(texts(trace.limits), "Left out", "rank1\\")
    assert all(limit.isprintable() for limit in texts(trace.limits))


def test_names_in_members_of_an_archive_are_shown_only(tmp_path):
    """A member called ../../x would be written to, or read from, outside the archive."""
    members = {
        "../../rank0.json": KINETO["rank0.json"],
        "/etc/\x1b[1mrank1.json": b'{"traceEvents"',
    }
    trace = import_trace(write(tmp_path / "in", {"a.tar": packed(members)}))
    assert trace.ranks == (0,)
    assert all(limit.isprintable() for limit in texts(trace.limits))
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "a.tar"]


def test_members_that_are_no_files_are_not_followed(tmp_path):
    """A link in an archive would have a file of the reader's own machine read."""
    members = {
        "rank0.json": KINETO["rank0.json"],
        "rank1.json": (tarfile.SYMTYPE, "/etc/passwd"),
        "self": (tarfile.LNKTYPE, "self"),
        "pipe": (tarfile.FIFOTYPE, ""),
    }
    trace = import_trace(write(tmp_path, {"a.tar": packed(members)}))
    assert trace.ranks == (0,)
    assert mentions(texts(trace.limits), "3 members")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_cut_archive_keeps_its_whole_members(tmp_path, mode):
    """The members before the cut would be lost with the torn one, or nobody told of the cut."""
    content = packed({**KINETO, "filler": os.urandom(4000)}, mode)
    cut = 4000 if mode == "w" else len(content) * 3 // 5
    trace = import_trace(write(tmp_path, {"a.tar": content[:cut]}))
    assert 0 in trace.ranks
    assert mentions(texts(trace.limits), "cut off")


def test_a_member_that_claims_to_be_huge(tmp_path):
    """An archive of a kilobyte could make the reader ask for an exabyte of memory."""
    claim = tarfile.TarInfo("rank5.json")
    claim.size = 1 << 60
    forged = claim.tobuf(tarfile.GNU_FORMAT) + bytes(2000)
    trace = import_trace(write(tmp_path, {**KINETO, "a.tar": forged}))
    assert trace.ranks == (0, 1)
    assert mentions(texts(trace.limits), "a.tar", "damaged")


def test_copies_and_mixtures_of_jobs(tmp_path):
    """Two jobs in one folder would be told of as one."""
    twice = {f"{job}/{n}": c for job in "ab" for n, c in KINETO.items()}
    trace = import_trace(write(tmp_path / "copied", twice))
    assert mentions(texts(trace.limits), "b/rank0.json left out", "a/rank0.json")
    longer = {n: re.sub(rb'("dur": ?)\d+', rb"\g<1>7", c) for n, c in twice.items() if n[0] == "b"}
    with pytest.raises(MeshscopeError, match="is rank 0, and so is"):
        import_trace(write(tmp_path / "twice", twice | longer))
    other = KINETO["rank1.json"].replace(b'"world_size": 2', b'"world_size": 8')
    with pytest.raises(MeshscopeError, match="several jobs"):
        import_trace(write(tmp_path / "mixed", {**KINETO, "rank1.json": other}))


@pytest.mark.parametrize("name", ["kineto", "ndtimeline"])
def test_files_of_other_formats_are_reported(tmp_path, name):
    """Files of another tool in the same folder would vanish without a word."""
    dumps = SEEDS["flight_recorder_pickle"]()
    trace = import_trace(write(tmp_path, {**SEEDS[name](), **dumps}))
    assert mentions(texts(trace.limits), "2 files", "_dump_0", "left out")


EVIL = "\x1b[31m<script>\u202e\n|"


def with_evil_names(name):
    """Return the files of a format with groups, hosts and kernels of one name that does harm."""
    evil = json.dumps(EVIL)[1:-1].encode()
    quoted = b'"' + evil + b'"'
    changes = {
        "kineto": [(b'Group Name": "0"', b'Group Name": ' + quoted), (b'pg_name": "0"', b'pg_name": ' + quoted),
                   (b"gemm", evil), (b"A100", evil)],
        "flight_recorder_json": [(b'"process_group": ["0"', b'"process_group": [' + quoted),
                                 (b'"pg_config": {"0"', b'"pg_config": {' + quoted)],
        "nccl_inspector": [(b"0x7f", evil), (b'"hostname": "a"', b'"hostname": ' + quoted)],
        "capture": [(b'"group_id": "0"', b'"group_id": ' + quoted), (b'"device_name": null', b'"device_name": ' + quoted)],
    }  # fmt: skip
    files = dict(SEEDS[name]())
    for file, content in files.items():
        if not file.endswith((".bin", ".arrows")):
            for old, new in changes[name]:
                content = content.replace(old, new)
            files[file] = content
    assert files != SEEDS[name]()
    return files


@pytest.mark.parametrize("name", ["kineto", "flight_recorder_json", "nccl_inspector", "capture"])
def test_names_in_files_reach_no_terminal_as_they_are(tmp_path, name):
    """A group, host or kernel could clear the screen, forge a line, or run a script in a page."""
    trace = load_trace(write(tmp_path, with_evil_names(name)))
    result, matched = diagnose(trace), collectives_to_json(trace)
    texts = {
        markdown: render(diagnosis_document(result))
        + (to_markdown if markdown else to_plain)(collectives_document(matched))
        for markdown, render in ((False, to_plain), (True, to_markdown))
    }
    lines = [line for text in texts.values() for line in text.split("\n")] + understood(trace)
    assert all(line.isprintable() for line in lines)
    assert "\\x1b[31m" in texts[False]
    assert "<script>" not in texts[True]
