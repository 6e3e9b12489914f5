"""The documentation says what is there, and nothing else."""

import importlib.util
import re
from dataclasses import fields

import pytest
import typer

from meshscope.analyze.explain.causes import CAUSES
from meshscope.analyze.gate.budgets import METRICS, MORE_METRICS
from meshscope.analyze.tables.classes import CLASSES, REFINED
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.settings.config import ProbeConfig

READ_AT_NIGHT = [
    "causes",
    "damaged-input",
    "detection",
    "formats",
    "frameworks",
    "inputs",
    "job-end",
    "mfu",
    "replay",
    "tutorial",
    "watch",
    "whatif",
    "trainer",
    "trainer-faults",
    "trainer-jobs",
    "truth",
    "truth-foreign",
]
"""Pages that somebody reads with a job that runs badly."""
MOST_WORDS, MEAN_WORDS, MOST_LINES = 30, 15, 6
"""Of a sentence; of the mean sentence of a page; of a paragraph."""

SECTIONS = ["## Context", "## Choice", "## Rejected", "## Consequence"]


@pytest.fixture(scope="module")
def generator(project_dir):
    """Return docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", project_dir / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def verbs():
    """Return the names of the commands."""
    from meshscope.cli import app

    return set(typer.main.get_command(app).commands)


@pytest.fixture(scope="module")
def pages(project_dir):
    """Return the text of every page of prose by its path."""
    files = [project_dir / "README.md", *sorted((project_dir / "docs").rglob("*.md"))]
    return {path: path.read_text(encoding="utf-8") for path in files}


@pytest.mark.parametrize("page", ["tables.md", "commands.md", "map.md"])
def test_generated_page_is_up_to_date(page, generator):
    """Fails when a table, column, vocabulary or command changed and its page did not."""
    assert not generator.stale(page, generator.PAGES[page]())


def test_every_folder_of_the_large_parts_is_listed(project_dir, pages):
    """Fails when a stage is added or renamed, and the list of folders is not."""
    folders = {
        f"`{path.parent.relative_to(project_dir).as_posix()}/`"
        for part in ("probe", "analyze", "reference_trainer")
        for path in (project_dir / part).glob("*/**/__init__.py")
    }
    listed = pages[project_dir / "docs" / "map.md"]
    assert not {folder for folder in folders if folder not in listed}


def test_files_on_the_map_exist(pages, project_dir):
    """Fails when the way of a record, or what to touch to add something, names a file that is gone."""
    named = re.findall(
        r"`((?:probe|analyze|dashboard|tests|docs)/[\w/.-]+)`",
        pages[project_dir / "docs" / "map.md"],
    )
    assert len(named) > 50
    assert not [name for name in named if not (project_dir / name).exists()]


def test_every_column_has_a_sentence_and_a_unit():
    """Fails when a column is declared without saying what it means or is measured in."""
    columns = [(spec.name, column) for spec in TABLES.values() for column in spec.columns]
    assert not [(t, c.name) for t, c in columns if len(c.meaning.split()) < 1 or not c.unit]


def test_columns_end_in_their_unit():
    """Fails when a time, size, rate or ratio is named without its unit."""
    suffix = {
        "ns": "_ns",
        "bytes": "_bytes",
        "Hz": "_hz",
        "W": "_w",
        "flop": "flops",
        "flop/s": "_flops",
    }
    wrong = [
        f"{spec.name}.{column.name}"
        for spec in TABLES.values()
        for column in spec.columns
        if not column.name.endswith(suffix.get(column.unit, ""))
    ]
    assert not wrong


def test_glossary_explains_every_value(generator, project_dir):
    """Fails when a value of a closed vocabulary is not explained in the glossary."""
    glossary = (project_dir / "docs" / "glossary.md").read_text(encoding="utf-8")
    missing = [
        f"{name}.{member.value}"
        for name, vocabulary in generator.vocabularies().items()
        for member in vocabulary
        if not re.search(
            rf"^\| `{re.escape(member.value)}` \| \S", _section(glossary, name), re.MULTILINE
        )
    ]
    assert not missing


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Classes of time", (*CLASSES, *REFINED)),
        ("Metrics", (*METRICS, *MORE_METRICS)),
        ("Causes", CAUSES),
    ],
)
def test_glossary_explains_every_figure(heading, names, project_dir):
    """Fails when a class of the ledger or a metric of the gate is not explained."""
    glossary = (project_dir / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9_]+)` \| \S", _section(glossary, heading), re.MULTILINE)
    assert not set(names) - set(rows)


def test_every_setting_is_documented(project_dir):
    """Fails when the probe has a setting whose variable no page names."""
    page = (project_dir / "docs" / "run-directory.md").read_text(encoding="utf-8")
    wanted = [f"| `MESHSCOPE_{field.name.upper()}` |" for field in fields(ProbeConfig)]
    assert not [row for row in wanted if row not in page]


def test_make_commands_exist(pages, project_dir):
    """Fails when a page tells the reader to run a make target that there is not."""
    targets = set(re.findall(r"^([a-z-]+):", (project_dir / "Makefile").read_text(), re.MULTILINE))
    reported = {word for text in pages.values() for word in _commands(text, "make")}
    assert reported
    assert not reported - targets


def test_verbs_exist(pages, verbs):
    """Fails when a page tells the reader to run a command that there is not."""
    reported = {word for text in pages.values() for word in _commands(text, "meshscope")}
    assert reported
    assert not reported - verbs


def test_links_lead_somewhere(pages, project_dir):
    """Fails when a page links to a file that there is not."""
    no_pictures = not any((project_dir / "docs" / "images").glob("*.png"))
    link = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
    broken = [
        f"{path.name}: {target}"
        for path, text in pages.items()
        for target in link.findall(text)
        if "://" not in target
        and not (path.parent / target).exists()
        and not (no_pictures and target.endswith(".png"))
    ]
    assert not broken


def test_anchors_exist(pages):
    """Fails when a page links to a heading that there is not."""
    link = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
    broken = []
    for path, text in pages.items():
        for target, anchor in link.findall(text):
            page = pages.get((path.parent / target).resolve() if target else path, "")
            headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
            if anchor not in {
                re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings
            }:
                broken.append(f"{path.name}: {target}#{anchor}")
    assert not broken


@pytest.mark.parametrize("name", READ_AT_NIGHT)
def test_a_page_can_be_read_at_night(name, pages, project_dir):
    """Fails when a page has long sentences or paragraphs, or does not begin with what to type."""
    text = pages[project_dir / "docs" / f"{name}.md"]
    paragraphs = _paragraphs(text)
    sentences = [s for one in paragraphs for s in _sentences(one)]
    lengths = [len(one.split()) for one in sentences]
    assert [one for one in sentences if len(one.split()) > MOST_WORDS] == []
    assert sum(lengths) / len(lengths) <= MEAN_WORDS
    assert [one for one in paragraphs if one.count("\n") >= MOST_LINES] == []
    beginning = text.split("\n## ")[0]
    assert [one for one in ("meshscope ", "torchrun ", "python -m ", "make ") if one in beginning]


def test_decisions_have_their_four_parts(project_dir):
    """Fails when a decision record leaves out why, what else, or what follows."""
    records = sorted((project_dir / "docs" / "adr").glob("[0-9]*.md"))
    assert records
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert [line for line in text.splitlines() if line.startswith("## ")] == SECTIONS, (
            record.name
        )


def test_changelog_knows_this_version(project_dir):
    """Fails when a version is given out that the changelog does not describe."""
    from meshscope import __version__

    text = (project_dir / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[({re.escape(__version__)}|Unreleased)\]", text, re.MULTILINE)


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs and items of lists of a page, without headings, tables and code."""
    prose = re.sub(r"```.*?```|<!--.*?-->|^[|#][^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [one.strip() for one in re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", prose) if one.strip()]


def _sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, links by their text; a colon ends one too."""
    text = re.sub(r"\]\([^)]*\)", "]", paragraph.replace("\n", " "))
    return [one for one in re.split(r"(?<=[.?!:;])\s+", text) if len(one.split()) > 2]


def _section(text: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one."""
    match = re.search(rf"^#+ {re.escape(heading)}\b(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return match.group(1) if match else ""


def _commands(text: str, program: str) -> set[str]:
    """Return the first words after a program's name in code spans and blocks."""
    code = re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
    call = re.compile(rf"(?:^|[`$;]|\n|&&|/bin/) *{program} +([a-z][a-z-]*)")
    return {word for span in code for word in call.findall(span)}
