"""The server process: it prints where it is, answers, and ends on Ctrl-C."""

import gzip
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
from flask import Flask

from meshscope.dashboard import serve
from meshscope.dashboard.serving import server
from meshscope.probe.schema.errors import ConfigError

_PROGRAM = "import pathlib, sys; from meshscope.dashboard import serve; serve(pathlib.Path(sys.argv[1]), port=0)"
_ENDING_S = 20


def test_serve_and_interrupt(runs_dir):
    """Fails when the printed address does not answer or sends all in full, or Ctrl-C ends in a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(runs_dir)],
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what runs in its background with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        try:
            url = re.search(r"http://127\.0\.0\.1:[1-9]\d*/", process.stderr.readline()).group()
            with urllib.request.urlopen(f"{url}api/v1/runs") as answer:
                assert b'"job"' in answer.read()
            asked = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
            with urllib.request.urlopen(asked) as answer:
                assert answer.headers["Content-Encoding"] == "gzip"
                assert b"meshscope" in gzip.decompress(answer.read())
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=_ENDING_S)
        finally:
            process.kill()
    assert "Traceback" not in rest


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70000), ("no such host", 0)]
)
def test_an_impossible_address_is_one_error(runs_dir, host, port):
    """Fails when a wrong address ends in a traceback, or another one is listened on."""
    with pytest.raises(ConfigError, match="cannot listen here"):
        serve(runs_dir, host=host, port=port)


def test_unused_memory_is_given_back_after_answers(monkeypatch):
    """Fails when what each answer leaves behind adds up, until the server holds twice what its runs take."""
    given = threading.Event()
    monkeypatch.setattr(server, "release_unused", given.set)
    monkeypatch.setattr(server, "_REST_S", 0.0)
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "there")
    server._give_back(app)
    assert app.test_client().get("/").text == "there"
    assert given.wait(30)


def test_tables_are_held_by_the_c_library():
    """Fails when the pool of Arrow keeps as much memory again as the tables of all runs take."""
    code = (
        "import pyarrow as pa; from meshscope.dashboard.runs.object_memory import waste_little; "
        "waste_little(); print(pa.default_memory_pool().backend_name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "system"
