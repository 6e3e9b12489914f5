"""The command line as people and programs meet it: output, errors, exit codes."""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from meshscope import cli
from meshscope.probe.schema.tables import FORMAT_VERSION

NOTES = re.compile(r"meshscope: (?:kept as|read) .*\n")
KEYS = {"run", "step_time_ns", "mfu", "waterfall", "causes", "findings", "limits"}


@pytest.fixture(scope="module")
def timeline(tmp_path_factory):
    """Return a timeline file of two stages with two replicas, of which rank 3 is slow."""
    rows = []
    for dp in (0, 1):
        for stage in (0, 1):
            for step in range(4):
                rows += _step(dp, stage, step)
    path = tmp_path_factory.mktemp("timeline") / "job.parquet"
    types = {
        "dp_rank": pa.int8(),
        "stage": pa.int8(),
        "rank": pa.int16(),
        "step": pa.int64(),
        "start_ts": pa.float32(),
        "duration": pa.float32(),
        "seq_id": pa.int32(),
        "mc": pa.int8(),
        "mb_id": pa.int8(),
    }
    columns = {name: pa.array([row[name] for row in rows], types.get(name)) for name in rows[0]}
    pq.write_table(pa.table(columns), path)
    return path


def _step(dp, stage, step):
    """Return the rows of one worker and step: forward, backward, their transfers, reduce, optimizer."""
    late = 0.2 if (dp, stage) == (1, 1) else 0.0
    pair_late = 0.2 if dp else 0.0
    if stage:
        shape = [
            ("forward-recv", 0.0, 0.21),
            ("forward-compute", 0.21, 0.2 + late),
            ("backward-compute", 0.41 + late, 0.4),
            ("backward-send", 0.81 + late, 0.01),
        ]
    else:
        shape = [
            ("forward-compute", 0.0, 0.2),
            ("forward-send", 0.2, 0.01),
            ("backward-recv", 0.21, 0.61 + pair_late),
            ("backward-compute", 0.82 + pair_late, 0.4),
        ]
    ready = 0.82 + late if stage else 1.22 + pair_late
    both = 1.02 if stage else 1.42
    shape += [
        ("grads-reduce-scatter", ready, both + 0.1 - ready),
        ("optimizer", both + 0.1, 0.05),
    ]
    return [
        {
            "dp_rank": dp,
            "stage": stage,
            "rank": 2 * stage + dp,
            "step": step,
            "optype": kind,
            "start_ts": start,
            "duration": length,
            "seq_id": 0,
            "mc": 0,
            "mb_id": -1 if kind in ("grads-reduce-scatter", "optimizer") else 0,
        }
        for kind, start, length in shape
    ]


@pytest.fixture
def meshscope(monkeypatch, capsys):
    """Return a function that runs a command line and gives its exit code, output and errors.

    Notes on what was read and kept are no errors; they are told once for each content.
    """
    monkeypatch.delenv("MESHSCOPE_DEBUG", raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["meshscope", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, NOTES.sub("", err)

    return run


def bad_inputs(folder):
    """Make one of each kind of input that is no trace; return them by name."""
    (folder / "empty").mkdir()
    (folder / "text.txt").write_text("hello\n", encoding="utf-8")
    (folder / "binary").write_bytes(bytes(range(256)) * 20)
    (folder / "torn.json").write_text('{"traceEvents": [', encoding="utf-8")
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("hello\n", encoding="utf-8")
    (folder / "newer").mkdir()
    (folder / "newer" / "manifest.json").write_text('{"format_version": 99}', encoding="utf-8")
    (folder / "hollow").mkdir()
    (folder / "hollow" / "manifest.json").write_text(
        f'{{"format_version": {FORMAT_VERSION}}}', encoding="utf-8"
    )
    for rank in ("a/rank00000", "b/rank00000"):
        (folder / "runs" / rank).mkdir(parents=True)
    (folder / "runs" / "notes.txt").write_text("hello\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("absent", "no such file or directory"),
        ("empty", "the folder is empty"),
        ("text.txt", "is not a trace that meshscope reads"),
        ("binary", "is not a trace that meshscope reads"),
        ("torn.json", "cut off"),
        ("texts", "is not a trace that meshscope reads"),
        ("newer", "has format version 99"),
        ("hollow", "no process of the job was a rank"),
        ("runs", "is a folder of runs"),
    ],
)
@pytest.mark.parametrize("command", ["diagnose", "gate"])
def test_a_bad_path_is_one_line_with_place_and_remedy(meshscope, tmp_path, command, name, what):
    """A user would get a traceback instead of what to do."""
    bad_inputs(tmp_path)
    (tmp_path / "budget.toml").write_text("[budget]\nmfu = { min = 0.4 }", encoding="utf-8")
    options = ["--budget", tmp_path / "budget.toml"] if command == "gate" else []
    code, out, err = meshscope(command, tmp_path / name, *options)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"meshscope: {tmp_path / name}")
    assert what in line
    remedy = line.split(what)[1]
    assert re.search(r"\. [A-Z]\w+ ", remedy), "no remedy"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "cannot be read: No such file"),
        ("mfu = ", "is not TOML"),
        ("", "no [budget] table"),
        ("[budget]\nspeed = { min = 1 }", "unknown metric"),
    ],
)
def test_a_bad_budget_is_one_line(meshscope, timeline, tmp_path, text, what):
    """A typing error in a budget would look like a passed or a failed gate."""
    path = tmp_path / "budget.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    code, out, err = meshscope("gate", timeline, "--budget", path)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert str(path) in line
    assert what in line


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        ("bubble_frac = { max = 1.0 }", 0),
        ("exposed_comm_frac = { max = 0.0001 }", 1),
        ("mfu = { min = 0.4 }", 2),
        ("mfu = { min = 0.4 }\nexposed_comm_frac = { max = 0.0001 }", 1),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_gate_exit_codes(meshscope, timeline, tmp_path, bounds, code, form):
    """A change that loses MFU would be merged, or a good one be stopped."""
    path = tmp_path / "budget.toml"
    path.write_text(f"[budget]\n{bounds}\n", encoding="utf-8")
    found, out, err = meshscope("gate", timeline, "--budget", path, "--format", form)
    assert (found, err) == (code, "")
    if form == "json":
        checks = json.loads(out)["checks"]
        assert len(checks) == bounds.count("=") // 2
        expected = {"metric", "min", "max", "value", "passed", "unknown_because", "messages"}
        assert set(checks[0]) == expected
    else:
        assert {0: "pass", 1: "FAIL", 2: "UNKNOWN"}[code] in out


def test_diagnose_as_json(meshscope, timeline):
    """Programs that read the result would break."""
    code, out, err = meshscope("diagnose", timeline, "--format", "json")
    assert (code, err) == (0, "")
    value = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(value) >= KEYS
    assert sum(bar["frac"] for bar in value["waterfall"]) == pytest.approx(1)
    slow = [f["where"]["rank"] for f in value["findings"] if f["kind"] == "straggler_rank"]
    assert slow == [3]


def test_diagnose_as_markdown(meshscope, timeline):
    """The waterfall in a pull request would not add up."""
    code, out, _ = meshscope("diagnose", timeline, "--format", "markdown")
    assert code == 0
    shares = [float(x) for x in re.findall(r"^\| [^|]+ \| (-?[\d.]+) % \| [\d.]+ \|$", out, re.M)]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.01 * len(shares))
    assert "Next:" not in out


def test_diagnose_as_text_ends_with_the_next_command(meshscope, timeline):
    """A new user would not know how to go on."""
    code, out, err = meshscope("diagnose", timeline)
    assert (code, err) == (0, "")
    assert out.rstrip().splitlines()[-1].startswith("Next: meshscope ")


def commands():
    """Return the names of all commands."""
    return sorted(typer.main.get_command(cli.app).commands)


@pytest.mark.parametrize("command", commands())
def test_help_of_every_command(meshscope, command):
    """A command could not be learnt from itself."""
    code, out, err = meshscope(command, "--help")
    assert (code, err) == (0, "")
    assert f"meshscope {command}" in out
    assert "--help" in out


def test_a_finished_trace_is_not_watched(meshscope, timeline):
    """Fails when a trace of yesterday is said to be a job of which no step ends."""
    code, out, err = meshscope("watch", timeline, "--for", "1")
    assert (code, out) == (2, "")
    assert "is a finished trace" in err
    assert f"Run: meshscope diagnose {timeline}" in err


@pytest.mark.parametrize(
    ("name", "said"), [("nope/x.html", "there is no folder"), (".", "a folder")]
)
def test_the_place_of_a_report_is_checked_first(meshscope, timeline, tmp_path, name, said):
    """Fails when a slip in the path shows after the analysis, and as the name of a temporary file."""
    code, _, err = meshscope("report", timeline, "--out", tmp_path / name)
    assert code == 2
    assert said in err
    assert ".part" not in err


@pytest.mark.parametrize("target", ["perfetto", "csv", "hta"])
def test_an_export_makes_no_folders_above_its_place(meshscope, timeline, tmp_path, target):
    """Fails when a slip in the path of an export makes a tree of folders."""
    out = tmp_path / "nope" / "deep" / "out"
    code, _, err = meshscope("export", timeline, "--out", out, "--to", target)
    assert code == 2
    assert f"there is no folder {out.parent}" in err
    assert "mkdir -p" in err
    assert not (tmp_path / "nope").exists()


def test_the_place_of_an_export_is_checked_first(meshscope, timeline, tmp_path):
    """Fails when a slip shows only after a long read, and then names a temporary file."""
    file = tmp_path / "file"
    file.write_text("mine", encoding="utf-8")
    for out, target in ((tmp_path, "perfetto"), (file, "csv"), (file, "hta")):
        code, _, err = meshscope("export", timeline, "--out", out, "--to", target)
        assert code == 2
        assert err.startswith(f"meshscope: {out}: is a f")
        assert "with --out" in err
    assert file.read_text(encoding="utf-8") == "mine"


def test_usage_errors_exit_with_2(meshscope, timeline):
    """A wrong option would look like a failed gate."""
    for arguments in (
        ["diagnose"],
        ["diagnose", ""],
        ["ingest", ""],
        ["diagnose", timeline, "--format", "xml"],
        ["arm", "--run", timeline, "--format", "xml"],
        ["attach", "--run", timeline, "--timeout", "inf"],
        ["run", "--nonsense", "true"],
        ["doctor", "--nonsense"],
        ["nonsense"],
    ):
        code, out, err = meshscope(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("meshscope: ")
        assert "Traceback" not in err


def test_debug_shows_where_an_error_came_from(meshscope, tmp_path):
    """A defect could not be reported with its place."""
    from meshscope.probe.schema.errors import RunDirectoryError

    try:
        with pytest.raises(RunDirectoryError):
            meshscope("--debug", "diagnose", tmp_path / "absent")
    finally:
        # The option sets the variable for the process; what set it here must end here.
        import os

        os.environ.pop("MESHSCOPE_DEBUG", None)


def test_the_installed_command_maps_errors_to_exit_code_2(tmp_path):
    """The entry point would behave differently from the function that the tests call."""
    done = subprocess.run(
        [sys.executable, "-c", "from meshscope.cli import main; main()", "diagnose", "absent"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr == "meshscope: absent: no such file or directory. Check the path\n"
    assert done.stdout == ""


def test_a_full_temporary_folder_is_named(monkeypatch, capsys):
    """Fails when who has a full disk reads "No space left" and looks at the disk of the trace."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    monkeypatch.setattr(cli, "only_the_verb", refuse)
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert tempfile.gettempdir() in said
    assert "TMPDIR" in said


def test_a_name_that_the_locale_lacks_is_escaped(timeline, tmp_path):
    """Fails when a job under LC_ALL=C gets a traceback for an accent in a folder's name."""
    folder = tmp_path / "\u00e9t\u00e9"
    arguments = ["diagnose", str(timeline), "--runs", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", "from meshscope.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=dict(os.environ, PYTHONIOENCODING="ascii"),
    )
    assert done.returncode == 0, done.stderr
    assert "\\xe9t\\xe9" in done.stdout


def test_traces_are_kept_with_a_note_beside_the_output(timeline, tmp_path, monkeypatch, capsys):
    """A program that reads the JSON would read notes with it, or nobody would know of the folder."""
    command = ["meshscope", "diagnose", timeline, "--format", "json", "--runs", tmp_path / "runs"]
    monkeypatch.setattr(sys, "argv", list(map(str, command)))
    outputs = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        outputs.append(capsys.readouterr())
    (run,) = (tmp_path / "runs").glob("job-*")
    assert str(run) in outputs[0].err
    assert outputs[1].err == ""
    first, second = (json.loads(output.out) for output in outputs)
    assert first == second
    assert first.keys() >= KEYS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["kernels", "run", "--top", "0"],
            "--top: must be at least 1. See meshscope kernels --help",
        ),
        (
            ["doctor", "--format", "html"],
            "--format: 'html' is not one of 'text', 'json', 'markdown'. See meshscope doctor --help",
        ),
        (
            ["arm", "run", "--steps", "5000"],
            "--steps: must be at most 1000. See meshscope arm --help",
        ),
        (["diagnose"], "PATH: is missing. See meshscope diagnose --help"),
        (
            ["diagnose", "", "--format", "json"],
            "PATH: it is empty: is a variable of the shell not set?",
        ),
        (["no-such-verb"], "no such command 'no-such-verb'. See meshscope --help"),
        (["kernls"], "no such command 'kernls'. Did you mean 'kernels'? See meshscope --help"),
        (["/"], "/ is not a command. Run: meshscope diagnose /"),
        (
            ["diagnose", "run", "--no-such"],
            "no such option: --no-such. See meshscope diagnose --help",
        ),
    ],
)
def test_a_wrong_command_line_gets_one_line_with_a_remedy(meshscope, arguments, said):
    """Fails when a user is answered in the words of the library that reads the command line."""
    code, out, err = meshscope(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"meshscope: {said}")
    assert err.count("\n") == 1


def test_no_words_at_all_get_the_help(meshscope):
    """Fails when who only types the name is told of an error."""
    code, out, err = meshscope()
    assert code == 2
    assert "Commands:" in out + err


def test_the_checks_as_markdown(meshscope, tmp_path):
    """Fails when a program that pastes the checks into a page gets a text in columns."""
    code, out, _ = meshscope("doctor", "--format", "markdown", "--runs", tmp_path)
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "| state | check | found | remedy |"
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}
