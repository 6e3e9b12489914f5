"""A server of recording processes, for the kill test: not imported, but run.

Each line on stdin names a run directory, a counter file and the settings of a
recorder. The server forks a process that records into them without end, prints
its process id, and prints how it died. Forking spares the start of Python and
the import of Arrow, which would be most of the test's time.
"""

import json
import mmap
import os
import sys
from pathlib import Path

import numpy  # noqa: F401 - what the writer thread needs is imported once here, not in every child
import pyarrow  # noqa: F401

from meshscope.probe.recording.record_heads import collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings


def record_forever(run_path: Path, counter_path: Path, settings: dict) -> None:
    """Record events; after each one, publish how many are committed.

    Event number i is distinguished from its values; the test knows the same rule.
    """
    with counter_path.open("r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    flush_every = settings.pop("flush_every")
    recorder = Recorder(run_path, 0, settings=StorageSettings(**settings))
    group = recorder.register_group("world", [0, 1], "default")
    dtype = recorder.register_dtype("bf16")
    number = event_id = 0
    while True:
        recorder.step = number
        which = number % 5
        if which == 0:
            event_id = recorder.issue_collective(
                collective_head(group, 1, dtype), number, 64, number + 1
            )
        elif which == 1:
            recorder.complete(event_id, number + 1, number + 2, number + 3)
        elif which == 2:
            recorder.record_span(span_head(0, 1, 0), number + 1, 10, 5, 3)
        elif which == 3:
            recorder.issue_p2p(p2p_head(group, 0, 1, dtype), number, 32, number + 1)
        else:
            recorder.record_step(number, number + 1, 10, 2048)
        number += 1
        counter[:] = number.to_bytes(8, "little")
        if number % flush_every == 0:
            # Stands for a step that is long enough for the writer to keep up.
            recorder.flush()


def serve() -> None:
    """Fork a recording process for each line until stdin ends."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                record_forever(Path(order["run"]), Path(order["counter"]), order["settings"])
            finally:
                os._exit(1)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
