"""Attaching to a process that was started without the probe.

Two ways, both for processes of the same user: the interpreter's own, from Python
3.14 on (``sys.remote_exec``, PEP 768), and a debugger, which stops the process while
it reads the symbols of torch. Both have the main thread of the process run a short
script between two instructions of Python; it starts a thread that imports the probe,
and nothing else.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import meshscope

from ..clock import now_ns
from ..schema.errors import ConfigError
from ..schema.manifest import create_file
from .client import Endpoint
from .directory import make_directory
from .finding import is_alive, socket_of_process

GDB_STALL_S = 16
"""Longest stop that was seen while a debugger was attached to a torch process."""
_GDB_TIMEOUT_S = 120.0
_POLL_S = 0.1
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

_SCRIPT = """\
def _begin():
    import importlib.util
    import sys

    folder = {folder!r}
    is_found = importlib.util.find_spec("meshscope") is not None
    if not is_found:
        sys.path.append(folder)
    try:
        from meshscope.probe.late import begin
    except ImportError as error:
        sys.stderr.write(f"meshscope: not attached: {{error}}\\n")
        return
    finally:
        if not is_found:
            sys.path.remove(folder)
    begin()


import threading

threading.Thread(target=_begin, name="meshscope-attach", daemon=True).start()
"""


def can_remote_exec() -> str:
    """Return why this Python cannot run a script in another one; empty if it can."""
    if hasattr(sys, "remote_exec"):
        return ""
    version = ".".join(map(str, sys.version_info[:2]))
    return f"sys.remote_exec needs Python 3.14 here and in the process; this is {version}"


def attach_by_interpreter(pid: int, environment: Mapping[str, str], timeout_s: float) -> Endpoint:
    """Have the interpreter of a process attach the probe; return its socket.

    Raises:
        ConfigError: This Python or the process cannot do that, or it did not attach in time.
    """
    _require_process(pid)
    reason = can_remote_exec()
    if reason:
        raise ConfigError(
            f"process {pid} has no control socket, and {reason}",
            where="attach",
            remedy="Start the job with `meshscope run --dormant`, or see --unsafe-gdb",
        )
    script = _write_script(pid, environment)
    try:
        sys.remote_exec(pid, str(script))  # type: ignore[attr-defined,unused-ignore]
        return _wait_for_socket(pid, environment, timeout_s)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"process {pid} cannot be reached: {error}", where="attach") from error
    finally:
        shutil.rmtree(script.parent, ignore_errors=True)


def attach_by_debugger(
    pid: int, environment: Mapping[str, str], timeout_s: float
) -> tuple[Endpoint, float]:
    """Attach the probe with gdb; return the socket and for how many seconds gdb ran.

    The process stands still meanwhile, and with it every rank that waits for it.
    Nothing of Python runs in it before its main thread comes back to Python by itself.

    Raises:
        ConfigError: There is no gdb, it may not debug the process, or the process
            did not attach in time.
    """
    _require_process(pid)
    gdb = shutil.which("gdb")
    if gdb is None:
        raise ConfigError(
            "gdb is not installed", where="--unsafe-gdb", remedy="Install gdb on this host"
        )
    script = _write_script(pid, environment)
    start_ns = now_ns()
    try:
        _run_gdb(gdb, pid, script)
        stopped_s = (now_ns() - start_ns) / 1e9
        return _wait_for_socket(pid, environment, timeout_s), stopped_s
    finally:
        shutil.rmtree(script.parent, ignore_errors=True)


def _require_process(pid: int) -> None:
    if not is_alive(pid):
        raise ConfigError(
            f"there is no process {pid} on this host",
            where="--pid",
            remedy="Give the id of a process that trains here, or --run",
        )


def _run_gdb(gdb: str, pid: int, script: Path) -> None:
    """Ask the interpreter of a process to run a script when it next can.

    The debugger stops the process anywhere, also within malloc or while an object is
    made; code that ran there and then would break it now and again. So the text goes
    to a page that the kernel gives, and Python is asked by ``Py_AddPendingCall``, which
    needs neither memory nor the interpreter lock. An error in what Python is so asked
    to run would surface in the training, so there is none.
    """
    where = f"bytes.fromhex('{os.fsencode(script).hex()}').decode()"
    code = (
        "import contextlib, runpy\n"
        f"with contextlib.suppress(BaseException): runpy.run_path({where})"
    )
    size = len(code) + 1
    text = code.replace("\n", "\\n")
    page = "((void *(*)(void *, unsigned long, int, int, int, long)) mmap)"
    pending = "((int (*)(void *, void *)) Py_AddPendingCall)"
    command = [
        gdb, "--batch", "-nx", "-p", str(pid),
        "-iex", "set auto-load off", "-iex", "set debuginfod enabled off",
        "-ex", f"set $page = {page}(0, {size}, {_READ_WRITE}, {_PRIVATE_ANONYMOUS}, -1, 0)",
        "-ex", f'set {{char[{size}]}} $page = "{text}"',
        "-ex", f"print $page == -1 ? -1 : {pending}((void *) PyRun_SimpleString, $page)",
        "-ex", "detach",
    ]  # fmt: skip
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_GDB_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"gdb did not come back within {_GDB_TIMEOUT_S:g} s and was ended", where="--unsafe-gdb"
        ) from error
    if "$1 = 0" not in ran.stdout:
        said = (ran.stderr.strip() or ran.stdout.strip() or "nothing").splitlines()[-1]
        raise ConfigError(f"gdb could not run code in process {pid}: {said}", where="--unsafe-gdb")


def _write_script(pid: int, environment: Mapping[str, str]) -> Path:
    """Write the script where only this user can read or replace it."""
    directory = make_directory(f"attach-{pid}-{os.urandom(4).hex()}", environment)
    folder = str(Path(meshscope.__file__).resolve().parents[1])
    path = directory / "attach.py"
    with open(create_file(path), "w", encoding="utf-8") as file:
        file.write(_SCRIPT.format(folder=folder))
    return path


def _wait_for_socket(pid: int, environment: Mapping[str, str], timeout_s: float) -> Endpoint:
    deadline_ns = now_ns() + int(timeout_s * 1e9)
    while now_ns() < deadline_ns:
        endpoint = socket_of_process(pid, environment)
        if endpoint is not None:
            return endpoint
        if not is_alive(pid):
            raise ConfigError(f"process {pid} has ended", where="attach")
        threading.Event().wait(_POLL_S)
    raise ConfigError(
        f"process {pid} has not attached within {timeout_s:g} s",
        where="attach",
        remedy="Its stderr may say why; a process that has not been told its rank has no socket "
        "before its first step",
    )
