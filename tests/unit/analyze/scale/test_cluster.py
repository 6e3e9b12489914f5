"""Summaries made by the workers of a Dask cluster."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from meshscope.analyze.scale import segments
from meshscope.analyze.scale.executors import DaskCluster, InThisProcess
from meshscope.analyze.scale.store import write_summaries
from meshscope.analyze.synthetic import SyntheticJob
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.cli import app
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

distributed = pytest.importorskip(
    "distributed", reason="needs dask: pip install 'meshscope[cluster]'"
)


PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of 8 ranks."""
    job = SyntheticJob(layout=ParallelLayout(tp=1, pp=2, dp=4), steps=4, jitter_cv=0.01)
    return write_run(job, record(make_simulation(job)), None, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address():
    """Give the address of a cluster of two threads, which see what is patched here."""
    cluster = distributed.LocalCluster(
        n_workers=2, processes=False, threads_per_worker=1, dashboard_address=":0"
    )
    with cluster:
        yield cluster.scheduler_address


def content(folder):
    """Return the bytes of every file."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_cluster_makes_the_same_files(run, address, tmp_path, monkeypatch):
    """The answer would depend on where it was computed."""
    monkeypatch.setattr(segments, "SEGMENT_RANKS", 2)
    done = []
    write_summaries(run, DaskCluster(address), done.append, tmp_path / "cluster")
    write_summaries(run, InThisProcess(), lambda _: None, tmp_path / "here")
    assert content(tmp_path / "cluster") == content(tmp_path / "here")
    assert sum(done) == 8


def test_the_account_takes_a_cluster_too(run, address):
    """What summaries can do on many machines, the first answer of a diagnosis could not."""
    found = CliRunner().invoke(app, ["diagnose", str(run), "--cluster", address])
    assert found.stdout.index("No rank is slow") < found.stdout.index("Where the step time went")


def test_a_cluster_accounts_for_every_step_alike(run, address):
    """Fails when windows that a cluster accounted for add up to something else, or it is not asked at all."""
    made = []
    for place in (["--cluster", address], ["--workers", "1"]):
        shutil.rmtree(run / "summaries" / "accounts", ignore_errors=True)
        asked = ["diagnose", str(run), "--every-step", "--format", "json", *place]
        made.append(CliRunner().invoke(app, asked).stdout)
    assert made[0] == made[1]
    assert '"step_count": 4' in made[0]


def test_a_cluster_makes_the_same_segments(run, address, tmp_path):
    """Fails when segments that a cluster made are not those of one machine."""
    made = []
    for place, words in (("cluster", ["--cluster", address]), ("here", ["--workers", "1"])):
        copy = tmp_path / place / run.name
        shutil.copytree(run, copy)
        done = CliRunner().invoke(app, ["compact", str(copy), *words])
        assert "compacted 8 of 8 ranks" in done.stderr
        files = sorted((copy / "tables").rglob("*.*"))
        made.append({str(file.relative_to(copy)): file.read_bytes() for file in files})
    assert made[0] == made[1]


@pytest.mark.sampled(keep=())
def test_the_script_for_slurm_does_what_its_page_says(run, tmp_path, project_dir):
    """A user would wait in a queue for a script that never worked."""
    page = (project_dir / "docs" / "scale.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    here = {"RUN": str(run), "8786": str(free_port()), "$(hostname)": "127.0.0.1", "16": "2"}
    for reported, own in here.items():
        script = script.replace(reported, own)
    programs = {
        "srun": 'exec "$@"',
        "dask": f'exec {sys.executable} -m dask "$@"',
        "meshscope": f'exec {sys.executable} -m meshscope "$@"',
    }
    for name, line in programs.items():
        place = tmp_path / name
        place.write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        place.chmod(0o700)
    done = subprocess.Popen(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        # The scheduler and the workers hold the pipe until SLURM ends them with the script.
        done.wait(timeout=PATIENCE_S)
    finally:
        os.killpg(done.pid, signal.SIGKILL)
    assert "Where the step time went" in done.communicate()[0]


def free_port():
    """Return a port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_an_address_where_nobody_answers_is_said(run, tmp_path, monkeypatch):
    """A wrong port would end in a traceback of the network."""
    monkeypatch.setattr("meshscope.analyze.scale.executors._CONNECT_S", 0.5)
    with pytest.raises(ConfigError, match=r"no Dask scheduler answers.*dask scheduler"):
        write_summaries(run, DaskCluster("tcp://127.0.0.1:9"), lambda _: None, tmp_path)
