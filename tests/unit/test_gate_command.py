"""`meshscope gate` against a baseline, from the command line."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from xml.etree import ElementTree

import numpy as np
import pytest
from tests import kineto_files
from typer.testing import CliRunner

from meshscope.cli import app
from meshscope.probe.schema.errors import ConfigError, MeshscopeError

CHECK_KEYS = {"metric", "verdict", "ratio", "low", "high", "why"}


def run(*words):
    """Run the command and return its result."""
    return CliRunner().invoke(app, ["gate", *map(str, words)], catch_exceptions=False)


def write_steps(path, *, runs=5, factor=1.0, noise=0.002, seed=1, steps=60):
    """Write a file of step times: runs that differ by noise, steps that differ by five times that."""
    random = np.random.default_rng(seed)
    lines = ["run,step,step_time_ns"]
    for name in range(runs):
        level = 5e8 * factor * np.exp(random.normal(0, noise))
        times = level * np.exp(random.normal(0, 5 * noise, steps))
        lines += [f"r{name},{step},{time:.0f}" for step, time in enumerate(times)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def base(tmp_path):
    """Return a baseline of five runs."""
    path = tmp_path / "base.json"
    assert run("baseline", write_steps(tmp_path / "base.csv"), "-o", path).exit_code == 0
    return path


@pytest.mark.parametrize(
    ("factor", "verdict", "code"), [(1.0, "pass", 0), (1.04, "fail", 1), (0.95, "improved", 0)]
)
def test_verdict_and_exit_code(tmp_path, base, factor, verdict, code):
    """CI would merge what is slower, or stop what is not."""
    candidate = write_steps(tmp_path / "new.csv", factor=factor, seed=2)
    done = run(candidate, "--baseline", base, "--margin", "0.01", "--format", "json")
    found = json.loads(done.stdout)
    assert (found["verdict"], done.exit_code) == (verdict, code)
    step = next(check for check in found["checks"] if check["metric"] == "step_p50")
    assert set(step) >= CHECK_KEYS
    assert step["low"] <= step["ratio"] <= step["high"]
    assert step["low"] < factor < step["high"]


def test_few_noisy_runs_ask_for_more(tmp_path):
    """A guess would be given as a verdict."""
    base = tmp_path / "base.json"
    assert (
        run("baseline", write_steps(tmp_path / "b.csv", runs=3, noise=0.02), "-o", base).exit_code
        == 0
    )
    candidate = write_steps(tmp_path / "new.csv", runs=3, factor=1.03, noise=0.02, seed=3)
    done = run(candidate, "--baseline", base, "--margin", "0.01", "--format", "json")
    found = json.loads(done.stdout)
    assert (found["verdict"], done.exit_code) == ("inconclusive", 2)
    assert found["checks"][0]["more_runs"] or "too near" in found["checks"][0]["why"]


def test_text_ends_with_the_next_command(tmp_path, base):
    """A reader would not know how to go on."""
    done = run(tmp_path / "base.csv", "--baseline", base)
    assert done.stdout.startswith("PASS")
    assert done.stdout.rstrip().splitlines()[-1].startswith("Next: meshscope gate ")


def test_a_baseline_is_small_and_equal_for_equal_runs(tmp_path, base):
    """A refresh would fill a review with lines that say nothing."""
    again = tmp_path / "again.json"
    run("baseline", tmp_path / "base.csv", "-o", again)
    assert again.read_bytes() == base.read_bytes()
    assert len(base.read_bytes()) < 50_000


def test_json_of_step_times_is_read_as_csv_is(tmp_path, base):
    """People with JSON would have to write a converter."""
    lines = (tmp_path / "base.csv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split(",") for line in lines]
    path = tmp_path / "base_steps.json"
    keys = ("run", "step", "step_time_ns")
    path.write_text(
        json.dumps([dict(zip(keys, (r, int(s), int(t)), strict=True)) for r, s, t in rows]),
        encoding="utf-8",
    )
    again = tmp_path / "again.json"
    run("baseline", path, "-o", again)
    assert again.read_bytes() == base.read_bytes()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("run,step,step_time_ns\na,0,nan\n", "not a number"),
        ("run,step,step_time_ms\na,0,5\n", "Rename step_time_ms to step_time_ns"),
        ("run,step,step_time_ns\na,0,-5\n", "is not a step time"),
        ("run,step,step_time_ns\na,0,5\na,0,5\n", "is there twice"),
        ("run,step,step_time_ns\na,0,5\na,1,5\n", "needs 5"),
        ("run,step,step_time_ns\n", "contains no step"),
    ],
)
def test_bad_step_times_are_refused(tmp_path, base, text, part):
    """A wrong file would give a wrong verdict."""
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MeshscopeError, match=part):
        run(path, "--baseline", base)


def damaged(**numbers):
    """Return the text of a baseline of one run with some wrong numbers."""
    one = {"name": "a", "steps": 9, "p50_ns": 5.0, "p99_ns": 6.0} | numbers
    window = {"first": 0, "count": 9}
    return json.dumps({"meshscope_gate_baseline": 1, "window": window, "runs": [one]})


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "no baseline can be read"),
        ("{", "is not JSON"),
        ("{}", "is not a baseline"),
        ('{"meshscope_gate_baseline": 99}', "this program reads"),
        ('{"meshscope_gate_baseline": 1}', "is damaged"),
        (damaged(p99_ns=0), "no step time above 0"),
        (damaged(steps=0), "no step time above 0"),
        (damaged(p50_ns=1e300), "an impossible time"),
    ],
)
def test_bad_baselines_are_refused(tmp_path, base, content, part):
    """A damaged baseline would pass everything."""
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=part):
        run(tmp_path / "base.csv", "--baseline", path)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["basline", "a.csv", "-o", "x.json"], "meshscope gate baseline"),
        (["a.csv"], "needs --budget or --baseline"),
        (["BASE", "BASE", "--baseline", "BASE"], "is given twice"),
        (["a.csv", "--baseline", "BASE", "--margin", "1"], "For 1 % write 0.01"),
        (["a.csv", "--baseline", "BASE", "--allow", "tpp"], "has no tpp"),
    ],
)
def test_slips_on_the_command_line_are_explained(base, words, part):
    """A slip would end in a riddle."""
    with pytest.raises(ConfigError, match=part):
        run(*(base if word == "BASE" else word for word in words))


def test_a_baseline_tells_its_false_alarms_and_what_it_sees(tmp_path, base):
    """Nobody would know how many runs a gate needs."""
    for path in (base, tmp_path / "base.csv"):
        found = json.loads(run("selftest", path, "--margin", "0.01", "--format", "json").stdout)
        assert [row["failed"] for row in found["splits"]] == [0, 0]
        found = json.loads(run("calibrate", path, "--margin", "0.01", "--format", "json").stdout)
        losses = [row["loss_frac"] for row in found["seen"]]
        assert losses[-1] == min(losses)
        assert losses[-1] > 0.01


def profile(path, kernels):
    """Write the profile of one rank: three steps of 1 ms with so many kernels each."""
    events = []
    for number in range(3):
        begin = number * 1000
        events.append(kineto_files.step(number, begin, 1000))
        for at in range(kernels):
            place = begin + 100 * at
            correlation = 10 * number + at + 1
            events += kineto_files.launched("gemm", place, place + 20, 50, correlation)
    return kineto_files.write(path, events)


def test_a_kernel_more_fails_with_one_profile_a_side(tmp_path):
    """A fusion that broke would need many runs to be seen, or pass."""
    base = tmp_path / "base.json"
    runs = ("--runs", tmp_path / "runs")
    assert run("baseline", profile(tmp_path / "a.json", 5), "-o", base, *runs).exit_code == 0
    words = ("--baseline", base, *runs, "--format", "json")
    same = run(profile(tmp_path / "b.json", 5), *words)
    assert (json.loads(same.stdout)["verdict"], same.exit_code) == ("pass", 0)
    other = run(profile(tmp_path / "c.json", 6), *words)
    found = json.loads(other.stdout)
    assert (found["verdict"], other.exit_code) == ("fail", 1)
    assert "kernel launches per step: 5 → 6: 1 more" in found["why"]


def test_a_history_becomes_csv_for_other_tools(tmp_path):
    """The history could not go on in the tool that a team already has."""
    out = tmp_path / "history.csv"
    steps = write_steps(tmp_path / "a.csv", runs=6)
    steps.write_text(steps.read_text(encoding="utf-8").replace("r0,", "=r0,"), encoding="utf-8")
    found = json.loads(run("history", steps, "--csv", out, "--format", "json").stdout)
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["step_p50_ns"]) for row in rows] == [one["p50_ns"] for one in found["runs"]]
    assert rows[0]["run"] == "'=r0"
    times = [datetime.fromisoformat(row["time"]) for row in rows]
    assert times == sorted(set(times))
    assert all(time.tzinfo is not None for time in times)


@pytest.mark.parametrize(
    ("runs", "part"), [(3, "has 3 runs; it takes 4 to"), (0, "contains no step")]
)
def test_a_history_too_short_is_refused(tmp_path, runs, part):
    """No change of two runs can be found, and the answer would read as if there was none."""
    with pytest.raises(MeshscopeError, match=part):
        run("history", write_steps(tmp_path / "a.csv", runs=runs))


def test_history_names_the_run_that_changed(tmp_path):
    """The commit that made a job slower would not be found."""
    before = write_steps(tmp_path / "before.csv", runs=12)
    after = write_steps(tmp_path / "after.csv", runs=12, factor=1.03, seed=2)
    found = json.loads(run("history", before, after, "--format", "json").stdout)
    (point,) = found["change_points"]
    assert (point["index"], point["run"]) == (12, "after/r0")
    assert point["ratio"] == pytest.approx(1.03, abs=0.004)
    assert "after/r0" in run("history", before, after).stdout


def test_junit_tells_the_failure(tmp_path, base):
    """CI would show a failed gate as passed."""
    candidate = write_steps(tmp_path / "new.csv", factor=1.04, seed=2)
    out = tmp_path / "gate.xml"
    assert run(candidate, "--baseline", base, "--margin", "0.01", "--junit", out).exit_code == 1
    suite = ElementTree.fromstring(out.read_text(encoding="utf-8"))
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["verdict", "step_p50"]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
