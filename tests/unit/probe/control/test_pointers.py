"""The notes that say where a rank's socket is."""

import os

from meshscope.probe.control.pointers import FOLDER, Pointer, boot_id, read_pointers, write_pointer


def test_a_note_is_read_as_it_was_written(tmp_path):
    """Fails when a user cannot find the socket of a rank."""
    socket = tmp_path / "rank1.7.sock"
    path = write_pointer(tmp_path / "run", 1, socket)
    host = os.uname().nodename
    assert read_pointers(tmp_path / "run") == [Pointer(1, os.getpid(), host, boot_id(), socket)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_damaged_notes_are_left_out(tmp_path):
    """Fails when a torn or foreign note stops the others from being read."""
    write_pointer(tmp_path, 0, tmp_path / "a.sock")
    for name, content in {
        "rank1.json": "{",
        "rank2.json": '{"rank": "2"}',
        "rank3.json": '{"rank": 3, "pid": true, "host": "", "boot_id": "", "socket": ""}',
        "rank4.json": '{"rank": 4, "pid": 5, "host": "", "boot_id": "", "socket": 6}',
    }.items():
        (tmp_path / FOLDER / name).write_text(content)
    assert [pointer.rank for pointer in read_pointers(tmp_path)] == [0]
    assert read_pointers(tmp_path / "absent") == []
