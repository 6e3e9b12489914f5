"""What an import pulls in. The direction of imports is held by .importlinter."""

import pytest

HEAVY = {"torch", "pyarrow", "pandas", "numpy", "plotly", "dash", "msgspec"}
BARE = {"probe", "analyze", "dashboard", "reference_trainer"}
LEFT_OUT = {
    "meshscope": HEAVY,
    "meshscope.probe": HEAVY,
    "meshscope.probe.schema.tables": HEAVY,
    "meshscope.analyze": HEAVY,
    "meshscope.analyze.diagnosis": {"torch", "plotly", "dash"},
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


def test_help_is_light(modules_after):
    """Fails when `meshscope --help` waits for torch, pandas, pyarrow or dash to load."""
    call = (
        "import sys\n"
        "from meshscope.cli import main\n"
        "sys.argv = ['meshscope', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert not modules_after(call) & HEAVY


def test_four_parts_are_relative_links(project_dir):
    """Fails when a link under src/meshscope is missing, absolute or points elsewhere."""
    for part in BARE:
        link = project_dir / "src" / "meshscope" / part
        assert link.is_symlink(), part
        assert link.readlink().as_posix() == f"../../{part}"
