"""The page of the mesh draws it on the hosts, and says what lies badly."""

import json

import pytest
from plotly.utils import PlotlyJSONEncoder

from meshscope.analyze import load_trace
from meshscope.analyze.output.json import topology_to_json
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, write_run
from meshscope.dashboard import create_app
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.runs.store import RunStore
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a folder with a job whose tensor groups cross hosts, and one whose do not."""
    folder = tmp_path_factory.mktemp("runs")
    for name, order in (("bad", "tp-pp-dp-cp"), ("good", "pp-dp-cp-tp")):
        job = SyntheticJob(
            layout=ParallelLayout(tp=2, pp=2, dp=2, order=order),
            microbatches=4,
            ranks_per_host=4,
            steps=3,
            costs=Costs(tp_ns=1_000_000),
        )
        write_run(job, *generate(job), folder).rename(folder / name)
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp"), ranks_per_host=4, steps=3
    )
    write_run(job, *generate(job), folder).rename(folder / "unpriced")
    return RunStore(folder)


def drawn(store, run):
    """Return the page of the mesh as JSON."""
    return json.dumps(page_of(store, f"/run/{run}/mesh", ""), cls=PlotlyJSONEncoder)


def test_the_page_says_where_the_mesh_lies_badly(store):
    """Fails when a mesh across hosts is priced by the command alone, and the page has nothing to paste."""
    found = topology_to_json(load_trace(store.path_of("bad")))["placement"]
    text, (violation,) = drawn(store, "bad"), found["violations"]
    assert "host0001" in text
    assert "TP: groups cross hosts although each fits on one" in text
    assert f"{violation['gain_ns_per_step'] / 1e6:.2f} ms per step" in text
    assert f'order=\\"{found["better_order"]["megatron_order"]}\\"' in text
    assert "rank 4=host0000 slot=2" in text


def test_the_page_says_why_an_order_has_no_price(store):
    """Fails when the page promises a gain, or none, where the command says that the speed of the ports is missing."""
    text = drawn(store, "unpriced")
    assert "Gain of other orders unknown" in text
    assert "state the speed of each [[host.nic]]" in text


def test_a_mesh_that_lies_well_is_drawn_without_an_order(store):
    """Fails when a good mesh is not drawn on its hosts, or another order is proposed."""
    text = drawn(store, "good")
    assert "host0001" in text
    assert "No placement problem found" in text
    assert "Better order" not in text


def test_the_twin_has_the_placement(store):
    """Fails when a program cannot read what the page draws."""
    client = create_app(store.root).server.test_client()
    twin = client.get("/api/v1/runs/bad/mesh.json").get_json()["placement"]
    command = topology_to_json(load_trace(store.path_of("bad")))["placement"]
    assert twin["better_order"] == json.loads(json.dumps(command["better_order"]))
    assert twin["violations"] == json.loads(json.dumps(command["violations"]))
