"""The script by which a process attaches itself, and what became of it.

It lies in a private folder and takes itself away when it begins, so its absence
says that the process has come to it. What hinders it is left there in its stead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import meshscope

from ..schema.manifest import create_file
from .directory import existing_directories, make_directory
from .finding import is_alive

_PREFIX = ".attach-"
"""No run can be called so: its directory would begin with the dot."""
_REFUSAL = ".refused"
_MOST_BYTES = 4096

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
