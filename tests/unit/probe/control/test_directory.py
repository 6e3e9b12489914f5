"""The directory of the sockets is private, or there is none."""

import os
import re
import stat
import tempfile
from pathlib import Path

import pytest

from meshscope.probe.control.directory import (
    FOLDER,
    MOST_PATH_BYTES,
    Pointer,
    boot_id,
    check_private,
    check_trusted,
    existing_directories,
    make_directory,
    read_pointers,
    run_name,
    socket_name,
    write_pointer,
)
from meshscope.probe.schema.errors import ConfigError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")


@pytest.fixture
def variables(short_dir, monkeypatch):
    """Return variables by which both choices are inside the test's own directory."""
    monkeypatch.setattr("meshscope.probe.control.directory._USUAL", ())
    second = short_dir / "tmp"
    second.mkdir()
    return {"XDG_RUNTIME_DIR": str(short_dir), "TMPDIR": str(second)}


@pytest.mark.parametrize("umask", [0, 0o777])
def test_it_is_made_for_us_alone(variables, short_dir, umask):
    """Fails when others may look into the directory, or we may not, whatever the umask says."""
    before = os.umask(umask)
    try:
        path = make_directory("run-1", variables)
    finally:
        os.umask(before)
    assert path == short_dir / "meshscope" / "run-1"
    for directory in (path, path.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert make_directory("run-1", variables) == path
    assert list(existing_directories(variables)) == [path]


def test_the_temporary_directory_is_the_second_choice(variables, short_dir, monkeypatch):
    """Fails when a rank has no socket, or the program finds a choice of ours for its own."""
    monkeypatch.setattr("tempfile.tempdir", None)
    expected = short_dir / "tmp" / f"meshscope-{os.geteuid()}" / "run-1"
    del variables["XDG_RUNTIME_DIR"]
    assert make_directory("run-1", variables) == expected
    assert make_directory("run-1", variables | {"XDG_RUNTIME_DIR": "relative"}) == expected
    assert tempfile.tempdir is None


@pytest.mark.parametrize("given", ["absent", "d" * 90], ids=["absent", "long"])
def test_a_temporary_directory_that_will_not_do_is_passed_over(short_dir, monkeypatch, given):
    """Fails when a rank has no socket because TMPDIR is missing, or too long for one."""
    monkeypatch.setattr("meshscope.probe.control.directory._USUAL", (str(short_dir),))
    if given != "absent":
        (short_dir / given).mkdir()
    variables = {"TMPDIR": str(short_dir / given)}
    path = make_directory("run-1", variables)
    assert path == short_dir / f"meshscope-{os.geteuid()}" / "run-1"
    assert list(existing_directories(variables)) == [path]


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_an_open_directory_is_refused(variables, short_dir, mode):
    """Fails when a directory that others prepared is used."""
    (short_dir / "meshscope").mkdir()
    (short_dir / "meshscope").chmod(mode)
    assert make_directory("run-1", variables).is_relative_to(short_dir / "tmp")
    with pytest.raises(ConfigError, match=f"has mode {mode:o}"):
        check_private(short_dir / "meshscope")


@pytest.mark.parametrize("name", ["meshscope", "meshscope/run-1"])
def test_a_symbolic_link_is_refused(variables, short_dir, name):
    """Fails when a link leads the socket into a directory of somebody else."""
    elsewhere = short_dir / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    link = short_dir / name
    if link.parent != short_dir:
        link.parent.mkdir(mode=0o700)
    link.symlink_to(elsewhere)
    assert make_directory("run-1", variables).is_relative_to(short_dir / "tmp")
    assert list(elsewhere.iterdir()) == []
    with pytest.raises(ConfigError, match="symbolic link"):
        check_private(link)


def test_a_link_on_the_way_is_refused(short_dir):
    """Fails when a directory above can be exchanged by moving a link."""
    real = short_dir / "real"
    (real / "deep").mkdir(parents=True, mode=0o700)
    (short_dir / "way").symlink_to(real)
    with pytest.raises(ConfigError, match="symbolic link"):
        check_trusted(short_dir / "way" / "deep")
    check_trusted(real / "deep")


def test_a_way_that_others_can_change_is_refused(short_dir):
    """Fails when a directory above lets others exchange ours."""
    (short_dir / "open" / "deep").mkdir(parents=True, mode=0o700)
    (short_dir / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="can be changed by other users"):
        check_trusted(short_dir / "open" / "deep")
    (short_dir / "open").chmod(0o1777)
    check_trusted(short_dir / "open" / "deep")


@needs_root
def test_a_directory_of_another_user_is_refused(variables, short_dir):
    """Fails when another user's directory is taken for ours."""
    (short_dir / "meshscope").mkdir(mode=0o700)
    os.chown(short_dir / "meshscope", 65534, 65534)
    assert make_directory("run-1", variables).is_relative_to(short_dir / "tmp")
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        check_private(short_dir / "meshscope")


def test_no_place_is_an_error_with_every_reason(variables, short_dir):
    """Fails when a refusal does not say what is wrong with each place."""
    (short_dir / "meshscope").mkdir(mode=0o755)
    variables["TMPDIR"] = str(short_dir / "absent")
    with pytest.raises(ConfigError, match=r"mode 755.*No such file.*Set XDG_RUNTIME_DIR"):
        make_directory("run-1", variables)


@pytest.mark.parametrize("run", ["a", "a" * 128, "run.1_x-y", "..", "a b", "a\n", "-a", "é" * 60])
def test_names_of_runs_fit_into_a_socket_path(run):
    """Fails when a long or odd name makes the path of a socket too long, or leads elsewhere."""
    name = run_name(Path("/runs") / run)
    longest = f"/run/user/4294967295/meshscope/{name}/{socket_name(99_999_999, 4_194_304)}"
    assert len(longest) <= MOST_PATH_BYTES
    assert re.fullmatch(r"[A-Za-z0-9._-]{10,}", name)
    assert not run.isascii() or not run.isalnum() or name.startswith(run[:40])


def test_equal_names_in_different_folders_differ(tmp_path):
    """Fails when two runs of one name share their sockets."""
    assert run_name(tmp_path / "a" / "run-1") != run_name(tmp_path / "b" / "run-1")


def test_a_path_too_long_for_a_socket_is_refused(variables, short_dir):
    """Fails when the socket's path is cut by the kernel."""
    deep = short_dir / ("d" * 80)
    deep.mkdir(mode=0o700)
    path = make_directory("run-1", variables | {"XDG_RUNTIME_DIR": str(deep)})
    assert path.is_relative_to(short_dir / "tmp")


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
