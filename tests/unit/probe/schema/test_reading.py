"""Only regular files of bounded size are opened."""

import os
import socket

import pytest

from meshscope.probe.schema.reading import open_file


def test_a_file_is_opened(tmp_path):
    """Good files would not be read."""
    (tmp_path / "a").write_bytes(b"abc")
    with open_file(tmp_path / "a", most_bytes=3) as file:
        assert file.read() == b"abc"


@pytest.mark.parametrize("what", ["pipe", "link", "device", "folder", "socket", "large", "absent"])
def test_anything_else_is_an_error_at_once(tmp_path, monkeypatch, what):
    """The reader would wait for ever, fill the memory, or read a file outside the run."""
    place = tmp_path / "a"
    (tmp_path / "outside").write_bytes(b"abc")
    if what == "pipe":
        os.mkfifo(place)
    elif what in ("link", "device"):
        place.symlink_to({"link": tmp_path / "outside", "device": "/dev/zero"}[what])
    elif what == "folder":
        place.mkdir()
    elif what == "socket":
        monkeypatch.chdir(tmp_path)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("a")
    elif what == "large":
        place.write_bytes(b"abcd")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"regular file|larger than|No such file"):
        open_file(place, most_bytes=3)
    assert len(os.listdir("/proc/self/fd")) == before
