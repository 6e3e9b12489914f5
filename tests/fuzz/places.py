"""Puts what is no file in the place of one."""

import os
import socket


def put(path, what, outside, monkeypatch):
    """Put a pipe, device, link, folder or socket at a path, in place of what is there.

    Args:
        path: The place.
        what: ``pipe``, ``device``, ``link``, ``folder`` or ``socket``.
        outside: A folder for the file that a link leads to.
        monkeypatch: Changes the working folder, because the path of a socket is short.
    """
    content = path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "link":
        (outside / "elsewhere").write_bytes(content)
        path.symlink_to(outside / "elsewhere")
    elif what == "folder":
        path.mkdir()
    else:
        monkeypatch.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
