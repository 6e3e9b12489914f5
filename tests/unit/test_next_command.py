"""The last line of a result: the command to run next, on the same capture, and about what was found."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.ndtimeline_jobs import JobShape, write_job
from typer.testing import CliRunner

from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.wording.command_line import command_line
from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

SLOW = "slow_rank:rank=5,factor=1.6"


def meshscope(*arguments):
    """Return the result of a command line."""
    return CliRunner().invoke(app, [str(one) for one in arguments])


def following(*arguments):
    """Return the words of the command in the last line, without the program."""
    lines = meshscope(*arguments).stdout.rstrip().splitlines()
    assert lines[-1].startswith("Next: meshscope "), lines[-1]
    return shlex.split(lines[-1])[2:]


def written(folder, *faults, layout):
    """Write a simulated job as a run; return it."""
    job = SyntheticJob(
        layout=layout,
        steps=8,
        schedule=ScheduleKind.ONE_F_ONE_B if layout.pp > 1 else ScheduleKind.NONE,
        jitter_cv=0.02,
        faults=tuple(map(parse_fault, faults)),
    )
    trace, _ = generate(job)
    return write_run(job, trace, None, folder)


@pytest.fixture(scope="module")
def slow_run(tmp_path_factory):
    """Return a run of eight ranks of which rank 5 is slow."""
    return written(tmp_path_factory.mktemp("runs"), SLOW, layout=ParallelLayout(pp=2, dp=4))


@pytest.fixture
def source(tmp_path):
    """Return traces of another tool, and the option for the folder that keeps them."""
    (tmp_path / "job").mkdir()
    trace = write_job(tmp_path / "job", JobShape(pp=1, dp=2, steps=4))
    return trace, ("--runs", tmp_path / "kept")


def test_a_diagnosis_goes_on_with_the_repair_of_its_first_finding(slow_run):
    """Fails when the reader is sent to a browser in place of the prediction for the slow rank."""
    words = following("diagnose", slow_run)
    assert words == ["whatif", str(slow_run), "--fix", "rank=5"]
    assert f"Pages: meshscope dashboard {slow_run.parent}" in meshscope("diagnose", slow_run).stdout


@pytest.mark.parametrize(
    ("fault", "layout", "words"),
    [
        ("slow_stage:stage=1,factor=1.5", {"pp": 2, "dp": 4}, ["whatif", "--fix", "stage=1"]),
        ("slow_rank:rank=2,factor=1.5,first_step=4", {"pp": 4}, ["whatif", "--fix", "stage=2"]),
        (
            "slow_link:axis=pp,rank=0,peer=4,factor=40",
            {"pp": 2, "dp": 4},
            ["whatif", "--fix", "link=0<->4"],
        ),
        ("hang:rank=3,microbatch=1", {"pp": 2, "dp": 4}, ["collectives"]),
        ("gc_pause:rank=1,extra_ms=40", {"dp": 4}, ["whatif", "--fix", "gc_pause"]),
    ],
)
def test_each_finding_has_its_own_command_and_that_works(tmp_path, fault, layout, words):
    """Fails when the command is about something else, or is refused."""
    run = written(tmp_path, fault, layout=ParallelLayout(**layout))
    verb, path, *options = following("diagnose", run)
    assert [verb, *options] == words
    assert path == str(run)
    assert meshscope(verb, path, *options).exit_code == 0


@pytest.mark.parametrize("link", ["0->4", "4->0", "0<->4"])
def test_a_link_that_is_slow_both_ways_is_repaired_by_any_of_its_names(tmp_path, link):
    """Fails when the name that a finding gives a link is unknown to the prediction."""
    fault = "slow_link:axis=pp,rank=0,peer=4,factor=40"
    run = written(tmp_path, fault, layout=ParallelLayout(pp=2, dp=4))
    done = meshscope("whatif", run, "--fix", f"link={link}", "--format", "json")
    assert json.loads(done.stdout)["gain_frac"] > 0.05


def test_without_a_finding_to_take_up_the_next_command_still_works(tmp_path):
    """Fails when a healthy run ends in a command that is an extra to install."""
    words = following("diagnose", written(tmp_path, layout=ParallelLayout(dp=4)))
    assert words[0] == "stragglers"
    assert meshscope(*words).exit_code == 0


@pytest.mark.parametrize("verb", ["breakdown", "kernels"])
def test_a_run_without_kernels_leads_to_what_can_be_reported(slow_run, verb):
    """Fails when two verbs that need kernels send the reader to each other."""
    assert following(verb, slow_run) == ["diagnose", str(slow_run)]
    assert following("diagnose", slow_run)[0] not in ("breakdown", "kernels")


def test_a_critical_path_names_the_rank_that_it_found(slow_run):
    """Fails when a placeholder is printed though the rank is known."""
    words = following("critical-path", slow_run)
    assert words == ["whatif", str(slow_run), "--fix", "rank=5"]
    assert meshscope(*words).exit_code == 0


VERBS = {
    "diagnose": [],
    "stragglers": [],
    "critical-path": [],
    "whatif": ["--fix", "stragglers"],
    "collectives": [],
    "topology": [],
    "breakdown": [],
    "export": ["--to", "csv", "--out"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_next_command_opens_what_was_kept(source, tmp_path, verb):
    """Fails when traces are read again, because the next command names them and not the run."""
    trace, runs = source
    options = VERBS[verb] + ([tmp_path / "out"] if verb == "export" else [])
    words = following(verb, trace, *options, *runs)
    assert words[1].startswith(str(tmp_path / "kept"))
    assert "--runs" not in words


@pytest.mark.parametrize("verb", VERBS)
def test_the_next_command_keeps_the_topology(source, tmp_path, verb):
    """Fails when the next command answers about another mesh than this one."""
    trace, runs = source
    file = tmp_path / "mesh of mine.toml"
    file.write_text("[layout]\ndp = 2\n", encoding="utf-8")
    options = VERBS[verb] + ([tmp_path / "out"] if verb == "export" else [])
    words = following(verb, trace, *options, *runs, "--topology", file)
    assert words[-2:] == ["--topology", str(file)]


def test_traces_that_could_not_be_kept_are_named_with_their_folder_of_runs(source, tmp_path):
    """Fails when the next command writes into another folder than the one that was asked for."""
    trace, _ = source
    (tmp_path / "notes").write_text("mine", encoding="utf-8")
    words = following("stragglers", trace, "--runs", tmp_path / "notes")
    assert words == ["diagnose", str(trace), "--runs", str(tmp_path / "notes")]


def test_a_check_of_the_machine_ends_with_a_command(tmp_path):
    """Fails when somebody new does not know how to go on."""
    assert following("doctor", "--runs", tmp_path)[0] == "run"


def test_jobs_after_one_that_cannot_be_read_are_ingested(source, tmp_path):
    """Fails when one folder of notes keeps all jobs behind it from being read."""
    trace, runs = source
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("hello", encoding="utf-8")
    done = meshscope("ingest", tmp_path / "a", trace.parent, *runs)
    assert done.exit_code == 2
    assert "is not a trace" in done.stderr
    assert done.stdout.rstrip().splitlines()[-1].startswith("Next: meshscope diagnose")


@pytest.mark.parametrize(
    "name", ["-dash", "it's", "red\x1b[31m\\n", "line\nend", "\u202egnp", "raw\udcff"]
)
def test_a_shell_finds_the_run_whatever_it_is_called(tmp_path, name):
    """Fails when the command that is to be copied opens another path, or acts on the terminal."""
    (tmp_path / name).write_text("found")
    line = command_line("diagnose", Path(name))
    assert line.isprintable()
    script = f'meshscope() {{ cat "$2"; }}; {line}'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "found", done.stderr


@pytest.mark.parametrize("name", ["-dash", "raw\udcff"])
def test_a_run_with_a_strange_name_is_read(tmp_path, name, monkeypatch):
    """Fails when a folder whose name is no UTF-8, or begins with a dash, cannot be looked at."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, layout=ParallelLayout(dp=2)).rename(tmp_path / name)
    result = meshscope("diagnose", f"./{name}")
    assert (result.exit_code, result.exception) == (0, None)
    assert "2 of 2 ranks" in result.stdout


def test_a_pause_is_not_followed_by_a_repair_without_a_price(tmp_path):
    """Fails when the last line of a diagnosis is a what-if that changes nothing."""
    pause = "slow_rank:rank=1,factor=4,first_step=5,last_step=5"
    run = written(tmp_path / "run", pause, layout=ParallelLayout(dp=4))
    first = json.loads(meshscope("diagnose", run, "--format", "json").stdout)["findings"][0]
    assert (first["kind"], first["removal_gain_frac"]) == ("host_stall", None)
    assert "host_stall" not in following("diagnose", run)
