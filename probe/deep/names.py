"""Where deep traces lie in a run, and where Kineto's sockets are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ..control.directory import make_directory
from ..schema.deep_trace import FOLDER
from ..schema.manifest import create_directory

_CLIENT_NAME_BYTES = len("dynoconfigclient") + 36
"""The client's socket: a word and a UUID."""


def trace_folder(rank_path: Path) -> Path:
    """Return the folder of a rank's traces, which is made if it is not there.

    Raises:
        OSError: It cannot be made, or is a link.
    """
    folder = rank_path / FOLDER
    create_directory(folder)
    return folder


def kineto_directory(run_path: Path, environment: Mapping[str, str]) -> Path:
    """Return the directory of the sockets between Kineto and the agent of a run.

    Its name is short, because the client adds a long one and paths of sockets are bounded.

    Raises:
        ConfigError: There is no private place for it, or their paths are too long.
    """
    check = hashlib.sha256(os.fsencode(os.path.realpath(run_path))).hexdigest()[:8]
    return make_directory(f"k-{check}", environment, _CLIENT_NAME_BYTES)
