"""What an import pulls in. The direction of imports is held by .importlinter."""

import pytest
from tests.kineto_files import launched, operator, step, write

HEAVY = {"torch", "pyarrow", "pandas", "numpy", "plotly", "dash", "msgspec"}
BARE = {"probe", "analyze", "dashboard", "reference_trainer"}
LEFT_OUT = {
    "meshscope": HEAVY,
    "meshscope.probe": HEAVY,
    "meshscope.probe.schema.tables": HEAVY,
    "meshscope.analyze": HEAVY,
    "meshscope.analyze.findings.diagnosis": {"torch", "plotly", "dash"},
    "meshscope.dashboard": {"torch"},
    "meshscope.reference_trainer": {"pandas", "dash", "plotly"},
    "meshscope.cli": HEAVY,
}


@pytest.mark.parametrize("module", LEFT_OUT)
def test_import_leaves_heavy_packages_out(module, modules_after):
    """Fails when importing a part loads a package that its users did not ask for."""
    loaded = modules_after(f"import {module}")
    assert not loaded & LEFT_OUT[module]


@pytest.mark.parametrize("module", LEFT_OUT)
def test_no_second_copy_under_a_bare_name(module, modules_after):
    """Fails when a part is also loaded under the bare name of its folder."""
    assert not modules_after(f"import {module}") & BARE


def _after_command(modules_after, *words):
    call = (
        "import sys\n"
        "from meshscope.cli import main\n"
        f"sys.argv = ['meshscope', *{[str(word) for word in words]!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    return modules_after(call)


def test_help_is_light(modules_after):
    """Fails when `meshscope --help` waits for torch, pandas, pyarrow or dash to load."""
    assert not _after_command(modules_after, "--help") & HEAVY


def test_reading_a_trace_of_one_process_needs_no_pandas(modules_after, tmp_path):
    """Fails when `meshscope ingest` of a small trace takes twice as long, to load pandas for nothing."""
    events = [step(1, 0, 1000), operator("aten::mm", 0, 20), *launched("gemm", 10, 100, 200, 1)]
    source = write(tmp_path / "trace.json", events)
    loaded = _after_command(modules_after, "ingest", source, "--runs", tmp_path / "runs")
    assert "pyarrow" in loaded
    assert "pandas.core.frame" not in loaded
    readers = {name for name in loaded if name.startswith("meshscope.analyze.read.")}
    assert not {name for name in readers if ".nsight" in name or ".memory" in name}


def test_reading_the_collectives_of_one_rank_needs_no_pandas(modules_after, tmp_path):
    """Fails when `meshscope ingest` of a rank's trace takes a third longer, to load pandas for its groups."""
    named = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Seq": 1}
    named |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    reduced = launched("ncclDevKernel_AllReduce", 210, 300, 50, 2, **named)
    unnamed = launched("ncclDevKernel_SendRecv", 310, 400, 50, 3)
    events = [step(1, 0, 1000), operator("aten::mm", 0, 20), *launched("gemm", 10, 100, 200, 1)]
    source = write(tmp_path / "trace.json", [*events, *reduced, *unnamed], world_size=2)
    loaded = _after_command(modules_after, "ingest", source, "--runs", tmp_path / "runs")
    assert "pandas.core.frame" not in loaded


@pytest.mark.parametrize("verb", ["ingest", "diagnose"])
def test_a_verb_checks_plain_parameters_without_pydantic(modules_after, tmp_path, verb):
    """Fails when a verb that gets a path loads pydantic, forms of results that it does not write, or summaries."""
    events = [step(1, 0, 1000), operator("aten::mm", 0, 20), *launched("gemm", 10, 100, 200, 1)]
    source = write(tmp_path / "trace.json", events)
    loaded = _after_command(modules_after, verb, source, "--runs", tmp_path / "runs")
    assert "typer" in loaded
    assert "pydantic" not in loaded
    unused = ("meshscope.analyze.output.json.", "meshscope.analyze.scale.")
    assert not {name for name in loaded if name.startswith(unused)}


def test_what_was_read_opens_without_readers(modules_after, tmp_path):
    """Fails when `meshscope diagnose` of a trace that is kept waits for readers, or for documents of other verbs."""
    events = [step(1, 0, 1000), operator("aten::mm", 0, 20), *launched("gemm", 10, 100, 200, 1)]
    source = write(tmp_path / "trace.json", events)
    kept_in = ("--runs", tmp_path / "runs")
    readers = ("meshscope.analyze.read.kineto.", "meshscope.analyze.read.deep_traces.")
    others = ("meshscope.analyze.explain.whatif.", "meshscope.analyze.output.text.kernels")
    first = _after_command(modules_after, "ingest", source, *kept_in)
    assert {name for name in first if name.startswith(readers)}
    loaded = _after_command(modules_after, "diagnose", source, *kept_in)
    assert not {name for name in loaded if name.startswith((*readers, *others))}


def test_four_parts_are_relative_links(project_dir):
    """Fails when a link under src/meshscope is missing, absolute or points elsewhere."""
    for part in BARE:
        link = project_dir / "src" / "meshscope" / part
        assert link.is_symlink(), part
        assert link.readlink().as_posix() == f"../../{part}"
