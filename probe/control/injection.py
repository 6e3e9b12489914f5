"""Attaching to a process that was started without the probe.

Two ways, both for processes of the same user: the interpreter's own, from Python
3.14 on (``sys.remote_exec``, PEP 768), and a debugger, which stops the process while
it reads the symbols of torch. Both have the main thread of the process run a short
script between two instructions of Python; it starts a thread that imports the probe,
and nothing else.

The script lies in a private folder and takes itself away when it begins, so its absence
says that the process has come to it. What hinders it is left there in its stead.
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
from ..schema.message import message
from .client import Endpoint
from .directory import existing_directories, make_directory
from .finding import (
    has_ended,
    is_alive,
    owner_of_process,
    python_of_process,
    remove_of_ended,
    socket_of_process,
)

_PREFIX = ".attach-"
"""No run can be called so: its directory would begin with the dot."""
_REFUSAL = ".refused"
_MOST_BYTES = 4096
"""Of a refusal: one sentence."""

_SCRIPT = """\
def _begin():
    import importlib.util
    import os
    import sys

    script, folder = {script!r}, {folder!r}
    try:
        os.unlink(script)
    except OSError:
        pass
    is_found = importlib.util.find_spec("meshscope") is not None
    if not is_found:
        sys.path.append(folder)
    try:
        from meshscope.probe.launching.running_process import begin
    except Exception as error:
        reason = f"{{type(error).__name__}}: {{error}}"
    else:
        reason = begin()
    finally:
        if not is_found and folder in sys.path:
            sys.path.remove(folder)
    try:
        if not reason:
            os.rmdir(os.path.dirname(script))
            return
        sys.stderr.write(f"meshscope: not attached: {{reason}}\\n")
        with open(script + {refusal!r}, "w", encoding="utf-8", errors="replace") as file:
            file.write(reason)
    except Exception:
        pass


import threading

threading.Thread(target=_begin, name="meshscope-attach", daemon=True).start()
"""


class AttachScript:
    """One script for one process.

    Attributes:
        path: Where only this user can read or replace it.
    """

    def __init__(self, pid: int, environment: Mapping[str, str]) -> None:
        """Write it; what earlier ones for this process and for ended ones left is removed.

        Raises:
            ConfigError: There is no private directory.
        """
        _sweep(pid, environment)
        self._folder = make_directory(f"{_PREFIX}{pid}-{os.urandom(4).hex()}", environment)
        self.path = self._folder / "attach.py"
        folder = str(Path(meshscope.__file__).resolve().parents[1])
        text = _SCRIPT.format(script=str(self.path), folder=folder, refusal=_REFUSAL)
        with open(create_file(self.path), "w", encoding="utf-8") as file:
            file.write(text)

    @property
    def has_begun(self) -> bool:
        """Tell whether the process has come to it."""
        return not self.path.exists()

    def refusal(self) -> str:
        """Return why the process did not attach, as it says; empty while it says nothing."""
        try:
            with open(f"{self.path}{_REFUSAL}", "rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def remove(self) -> None:
        """Take it away, and what it left."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _sweep(pid: int, environment: Mapping[str, str]) -> None:
    """Remove the scripts that nobody will come to any more."""
    for directory in existing_directories(environment):
        if not directory.name.startswith(_PREFIX):
            continue
        owner = int(directory.name.removeprefix(_PREFIX).partition("-")[0])
        if owner == pid or not is_alive(owner):
            shutil.rmtree(directory, ignore_errors=True)


GDB_STALL_S = 16
"""Longest stop that was seen while a debugger was attached to a torch process."""
ENDED_REMEDY = message("advice.process_that_runs")
_GDB_TIMEOUT_S = 120.0
"""gdb reads the symbols of all libraries, torch's too, before it attaches."""
_POLL_S = 0.1
"""Short beside the seconds that a rank takes to answer."""
_THIS_PYTHON = ".".join(map(str, sys.version_info[:2]))
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def can_remote_exec() -> str:
    """Return why this Python cannot run a script in another one; empty if it can."""
    if not hasattr(sys, "remote_exec"):
        return f"sys.remote_exec needs Python 3.14 here and in the process; this is {_THIS_PYTHON}"
    return ""


def attach_by_interpreter(pid: int, environment: Mapping[str, str], timeout_s: float) -> Endpoint:
    """Have the interpreter of a process attach the probe; return its socket.

    Raises:
        ConfigError: This Python or the process cannot do that, or it did not attach in time.
    """
    _require_process(pid)
    _require_same_python(pid)
    script = AttachScript(pid, environment)
    try:
        sys.remote_exec(pid, str(script.path))  # type: ignore[attr-defined,unused-ignore]
    except (OSError, RuntimeError, ValueError) as error:
        script.remove()
        raise (_ended(pid, environment) or _unreachable(pid, error)) from error
    return _wait_for_socket(pid, script, environment, timeout_s)


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
            message("refused.no_gdb"), where="--unsafe-gdb", remedy=message("advice.install_gdb")
        )
    script = AttachScript(pid, environment)
    start_ns = now_ns()
    try:
        _run_gdb(gdb, pid, script.path)
    except ConfigError as error:
        script.remove()
        raise (_ended(pid, environment) or error) from error.__cause__
    stopped_s = (now_ns() - start_ns) / 1e9
    return _wait_for_socket(pid, script, environment, timeout_s), stopped_s


def _ended(
    pid: int, environment: Mapping[str, str], *, within_s: float = 0.5
) -> ConfigError | None:
    """Return the error for a process that has ended, with nothing of it left; None if it runs."""
    if not has_ended(pid, within_s):
        return None
    remove_of_ended(pid, environment)
    return ConfigError(
        message("refused.process_ended", pid=pid), where="attach", remedy=ENDED_REMEDY
    )


def _require_process(pid: int) -> None:
    """Accept a process that could read a script of ours; another user's cannot."""
    if not is_alive(pid):
        raise ConfigError(
            message("refused.no_process", pid=pid),
            where="--pid",
            remedy=message("advice.process_that_trains"),
        )
    owner = owner_of_process(pid)
    if owner not in (None, os.geteuid()):
        raise ConfigError(
            message("refused.process_of_other_user", pid=pid, owner=owner),
            where="--pid",
            remedy=message("advice.as_that_user"),
        )


def _require_same_python(pid: int) -> None:
    """Accept a process whose interpreter understands ours, as far as that can be known."""
    theirs = python_of_process(pid)
    other = f"; the process runs {theirs}" if theirs not in ("", _THIS_PYTHON) else ""
    if reason := can_remote_exec():
        raise ConfigError(
            message("refused.no_control_socket", pid=pid, reason=reason, other=other),
            where="attach",
            remedy=message("advice.dormant"),
        )
    if other:
        raise ConfigError(
            message("refused.no_remote_exec", pid=pid, python=_THIS_PYTHON, other=other),
            where="attach",
            remedy=message("advice.other_python"),
        )


def _unreachable(pid: int, error: Exception) -> ConfigError:
    """Return what an error of ``sys.remote_exec`` means, and what would help."""
    if isinstance(error, PermissionError):
        remedy = message("advice.rights_to_debug")
    elif "not enabled in the remote" in str(error):
        remedy = message("advice.remote_debug_off")
    elif "not enabled" in str(error):
        remedy = message("advice.remote_debug_here")
    else:
        remedy = message("advice.same_python", python=_THIS_PYTHON)
    return ConfigError(
        message("refused.process_not_reached", pid=pid, error=error), where="attach", remedy=remedy
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
            message("refused.gdb_stuck", timeout_s=_GDB_TIMEOUT_S), where="--unsafe-gdb"
        ) from error
    if "$1 = 0" not in ran.stdout:
        said = (ran.stderr.strip() or ran.stdout.strip() or "nothing").splitlines()[-1]
        raise ConfigError(message("refused.gdb_failed", pid=pid, said=said), where="--unsafe-gdb")


def _wait_for_socket(
    pid: int, script: AttachScript, environment: Mapping[str, str], timeout_s: float
) -> Endpoint:
    """Wait until a process that was given a script has attached itself.

    The script is taken away unless the process has still to come to it: then it would
    complain of a file that is not there, in the output of the training.
    """
    deadline_ns = now_ns() + int(timeout_s * 1e9)
    while now_ns() < deadline_ns and is_alive(pid):
        endpoint = socket_of_process(pid, environment)
        refusal = "" if endpoint else script.refusal()
        if endpoint is not None or refusal:
            script.remove()
        if endpoint is not None:
            return endpoint
        if refusal:
            raise ConfigError(
                message("refused.not_attached", pid=pid, refusal=refusal), where="attach"
            )
        threading.Event().wait(_POLL_S)
    if (ended := _ended(pid, environment, within_s=0.0)) is not None:
        script.remove()
        raise ended
    if not script.has_begun:
        raise ConfigError(
            message("refused.main_thread_busy", pid=pid, timeout_s=timeout_s),
            where="attach",
            remedy=message("advice.attaches_later"),
        )
    script.remove()
    raise ConfigError(
        message("refused.attach_late", pid=pid, timeout_s=timeout_s),
        where="attach",
        remedy=message("advice.stderr_may_say"),
    )
