"""What `meshscope gate` writes for CI systems, also where names hold what these would obey."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.unit.test_gate_command import run, write_steps

from meshscope.analyze.output.text.gate_ci import (
    gate_to_annotations,
    gate_to_gitlab,
    gate_to_openmetrics,
    step_summary,
)
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

SAMPLE = re.compile(
    r'[a-z_:][a-z0-9_:]*(\{[a-z_]+="([^"\\\n]|\\[\\n"])*"(,[a-z_]+="([^"\\\n]|\\[\\n"])*")*\})? '
    r"-?[0-9.e+-]+"
)


def failed(why="a:b, 100%\n::error::x", checks=1):
    """Return the JSON form of a gate that failed."""
    one = {"metric": 'count."x,:\n', "verdict": "fail", "why": why, "ratio": 2.0, "before": None}
    return {"verdict": "fail", "why": why, "checks": [one] * checks}


@pytest.fixture
def base(tmp_path):
    """Return a baseline of five runs."""
    path = tmp_path / "base.json"
    assert run("baseline", write_steps(tmp_path / "base.csv"), "-o", path).exit_code == 0
    return path


def test_all_outputs_of_one_failed_gate(tmp_path, base):
    """CI would show a failed gate as passed, or the pages of other commands would be lost."""
    candidate = write_steps(tmp_path / "new.csv", factor=1.04, seed=2)
    page, quality, metrics = (tmp_path / name for name in ("page.md", "quality.json", "gate.prom"))
    page.write_text("of another command\n", encoding="utf-8")
    files = ("--step-summary", page, "--gitlab", quality, "--openmetrics", metrics)
    words = (candidate, "--baseline", base, "--margin", "0.01", "--annotations", *files)
    done = run(*words, "--format", "json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("of another command\n### meshscope gate\n\nFAIL")
    assert "- [fail] step_p50: " in text
    (issue,) = json.loads(quality.read_text(encoding="utf-8"))
    assert (issue["check_name"], issue["severity"]) == ("meshscope-gate/step_p50", "major")
    assert issue["location"] == {"path": base.as_posix(), "lines": {"begin": 1}}
    lines = metrics.read_text(encoding="utf-8").splitlines()
    ratio = found["checks"][0]["ratio"]
    assert f'meshscope_gate_ratio{{metric="step_p50"}} {ratio!r}' in lines
    verdict = 'meshscope_gate_verdict{metric="verdict",meshscope_gate_verdict="fail"} 1'
    assert verdict in lines
    assert lines[-1] == "# EOF"
    errors = [line for line in done.stderr.splitlines() if line.startswith("::error title=")]
    assert [line.split("::")[1] for line in errors] == [
        "error title=meshscope gate%3A verdict",
        "error title=meshscope gate%3A step_p50",
    ]


def test_a_gate_that_passes_complains_nowhere(tmp_path, base):
    """A merge request would show issues of a change that has none."""
    candidate = write_steps(tmp_path / "new.csv", runs=1, seed=2)
    quality = tmp_path / "quality.json"
    words = ("--baseline", base, "--margin", "0.02", "--gitlab", quality, "--annotations")
    done = run(candidate, *words)
    assert done.exit_code == 0
    assert json.loads(quality.read_text(encoding="utf-8")) == []
    assert done.stderr.splitlines()[-1].startswith("::notice title=")
    assert "::error" not in done.stderr
    assert "::warning" not in done.stderr


def test_annotations_are_escaped_and_few():
    """A name in a trace would give commands to the runner, or 1,000 annotations hide the first."""
    lines = gate_to_annotations(failed(checks=1000)).splitlines()
    assert len(lines) == 10
    assert lines[0] == "::error title=meshscope gate%3A verdict::a:b, 100%25\\n::error::x"
    assert lines[1].startswith('::error title=meshscope gate%3A count."x%2C%3A\\n::')
    assert all(line.startswith("::error title=") for line in lines)


def test_a_page_is_cut_at_a_line():
    """GitHub would show nothing of a page beyond its limit."""
    text = step_summary("wörter\n" * 200_000)
    assert len(text.encode()) < 600_000
    assert set(text.splitlines()[2:-2]) == {"wörter"}


def test_an_issue_stays_the_same_when_its_numbers_move():
    """Every pipeline would open a new issue and close the old one."""
    first, second = (
        json.loads(gate_to_gitlab(failed(why), Path("base.json")))[0] for why in ("a", "b")
    )
    assert first["fingerprint"] == second["fingerprint"]
    assert first["description"] != second["description"]


def test_openmetrics_follows_its_grammar():
    """A scraper would refuse the whole file for one name or one unknown figure."""
    result = failed()
    result["checks"].append({"metric": "step_p50", "verdict": "pass", "ratio": float("nan")})
    text = gate_to_openmetrics(result)
    lines = text.splitlines()
    assert text.endswith("# EOF\n")
    samples = [line for line in lines if not line.startswith("#")]
    assert len(samples) == 3 * 5 + 1
    assert not [line for line in samples if not SAMPLE.fullmatch(line)]


def test_budgets_have_the_same_outputs(tmp_path):
    """People with budgets would have no page and no annotations."""
    job = SyntheticJob(layout=ParallelLayout(dp=2), steps=8)
    trace, _ = generate(job)
    path = write_run(job, trace, None, tmp_path / "runs")
    budget = tmp_path / "gate.toml"
    budget.write_text(
        "[budget]\nstep_time_ns = { max = 1 }\nmfu = { min = 0.4 }\n", encoding="utf-8"
    )
    page, junit = tmp_path / "page.md", tmp_path / "gate.xml"
    done = run(path, "--budget", budget, "--step-summary", page, "--annotations", "--junit", junit)
    assert done.exit_code == 1
    assert "| step_time_ns |" in page.read_text(encoding="utf-8")
    assert "::error title=meshscope gate%3A step_time_ns::FAIL" in done.stderr
    assert "::warning title=meshscope gate%3A mfu::UNKNOWN" in done.stderr
    assert 'failures="2" errors="0" skipped="1"' in junit.read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_refused_first(tmp_path, base):
    """Half an hour of reading would end in an error."""
    with pytest.raises(ConfigError, match="there is no folder"):
        run(tmp_path / "gone.csv", "--baseline", base, "--gitlab", tmp_path / "no" / "file.json")
