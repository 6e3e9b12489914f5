"""The page of memory: measured, expected, who runs out first, terms, and a better layer split."""

import json
import shutil

import pytest
from plotly.utils import PlotlyJSONEncoder
from tests.pipeline_dumps import write_dumps

from meshscope.analyze.load.ingest import Keeping, ingest
from meshscope.dashboard import create_app
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.figures.memory import memory_bars, memory_over_time, parts_of
from meshscope.dashboard.pages.memory import balance_content
from meshscope.dashboard.runs.store import RunStore

MEMORY_GIB = (52, 44, 41, 38, 41)
TOPOLOGY = """\
[layout]
pp = 5
[model]
num_layers = 20
hidden_size = 4096
num_heads = 32
ffn_size = 14336
kv_heads = 8
vocab_size = 128256
seq_len = 8192
gated = true
[training]
tokens_per_step = 131072
zero = 1
gradient_dtype = "fp32"
device_memory_bytes = 85000000000
layers = [4, 4, 4, 4, 4]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a folder with two runs of a pipeline with a heavy head: one with a stated model."""
    tmp_path = tmp_path_factory.mktemp("memory")
    runs = tmp_path / "runs"
    write_dumps(tmp_path / "dumps", [4] * 5, MEMORY_GIB)
    kept = ingest(tmp_path / "dumps", Keeping(runs_dir=runs)).path.rename(runs / "bare")
    shutil.copytree(kept, runs / "stated")
    (runs / "stated" / "topology.toml").write_text(TOPOLOGY)
    return RunStore(runs)


def text_of(component):
    """Return everything that is sent to the browser."""
    return json.dumps(component, cls=PlotlyJSONEncoder)


def test_the_page_says_what_stages_hold_and_should_hold(store):
    """Fails when measured, expected, headroom, or a term with its source is not on the page."""
    text = text_of(page_of(store, "/run/stated/memory", ""))
    shown = ("Stage 0 holds most: 52 GiB", "capacity, 79.2 GiB", "Stage 0 runs out first")
    for words in (*shown, "arXiv 2205.05198", "Assumed: recompute none", "Over time"):
        assert words in text


def test_what_is_not_known_has_its_reason(store):
    """Fails when a run without a model shows an expectation, or no way to state one."""
    text = text_of(page_of(store, "/run/bare/memory", ""))
    assert "Expected memory is not known" in text
    assert "The capture lacks the model" in text
    assert "topology.toml" in text
    assert "0 B" not in text


def test_the_answer_for_programs_is_the_same(store):
    """Fails when a program gets other terms than the page, or none."""
    client = create_app(store.root).server.test_client()
    answer = client.get("/api/v1/runs/stated/memory.json").json
    assert answer["stages"] == json.loads(json.dumps(store.get("stated").memory()["stages"]))
    for row in answer["stages"]:
        terms = answer["terms"][str(row["stage"])]
        assert sum(one["bytes"] for one in terms) == pytest.approx(row["expected_bytes"], abs=99)
    assert [one["bytes"][0] for one in answer["over_time"]] == [size << 30 for size in MEMORY_GIB]


def test_bars_hold_all_that_was_measured(store):
    """Fails when a bar is shorter than the memory of its stage, or opens another stage."""
    rows = store.get("stated").memory()["stages"]
    for row in rows:
        measured, expected = parts_of(row)
        assert sum(measured.values()) == row["peak_bytes"]
        assert sum(expected.values()) == pytest.approx(row["expected_bytes"], abs=9)
    bars = memory_bars(rows).data
    (measured,) = [bar for bar in bars if bar.name == "not separated"]
    assert list(measured.x) == list(MEMORY_GIB)
    assert list(measured.customdata) == [0, 1, 2, 3, 4]


def test_lines_of_stages_differ(store):
    """Fails when two stages over time have one colour."""
    lines = memory_over_time(store.get("stated").memory()["over_time"]).data
    assert len({line.line.color for line in lines}) == len(MEMORY_GIB)


def test_before_and_after_a_balance(store):
    """Fails when the page proposes another split than the command, or no memory of it."""
    run = store.get("stated")
    best = run.balance()["proposals"][0]
    text = text_of(balance_content(run, store.root))
    assert best["layers"][-1] < 4
    assert ",".join(map(str, best["layers"])) in text
    assert "now: 4,4,4,4,4" in text
    client = create_app(store.root).server.test_client()
    assert client.get("/api/v1/runs/stated/balance.json").json["proposals"][0] == best


def test_a_balance_that_cannot_be_is_explained(store, runs_dir):
    """Fails when an unknown split, or a run without a pipeline, ends in an error."""
    text = text_of(balance_content(store.get("bare"), store.root))
    assert "No layer split was searched" in text
    assert "the layers of each stage are unknown" in text
    assert str(runs_dir) not in text
    flat = page_of(RunStore(runs_dir), "/run/job/memory", "")
    assert "No memory was recorded" in text_of(flat)
    assert "memory-balance" not in text_of(flat)
