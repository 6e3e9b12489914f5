"""Inputs that are not ours: the answers that are right today must stay so. `make truth` tries them all."""

import json
from dataclasses import replace

import pytest
from tests.truth.foreign.case import Case, Check, Outcome, Reply, ask, judge
from tests.truth.foreign.files import files
from tests.truth.foreign.memory import memory
from tests.truth.foreign.pipelines import GAIN, held_out, production
from tests.truth.foreign.place import shared_folder
from tests.truth.foreign.readers import largest_healthy, names, says
from tests.truth.foreign.scripts import scripts
from tests.truth.foreign.table import BEGIN, END, report, written
from tests.truth.foreign.tables import tables
from tests.truth.foreign.throughput import throughputs
from tests.truth.foreign.traces import traces

RIGHT = (
    "ST-r2x2-noise",
    "ST-r2x2-no-clip",
    "ST-seq0.3",
    "ahead",
    "devkernel",
    "fsdp_cpu",
    "four-ranks-of-ResNet",
    "hang-of-Megatron,-16-ranks",
    "links",
    "memory-deepseekv3_l4_tp1_ep8_pp1_dp8_mbc4_cef",
    "memory-gpt-gpt3_mcore_te_tp1_pp4_vp1",
    "published-job",
    "skew",
    "throughput-deepseekv3",
    "throughput-llama3.1_405b",
)
"""Cases all of whose answers are right; whoever mends a miss adds its case here."""


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Return all cases that need no live job, by name."""
    shared = shared_folder()
    if shared is None:
        pytest.skip("needs the shared folder of foreign inputs (MESHSCOPE_FOREIGN names another)")
    cases = production(shared, tmp_path_factory.mktemp("production"))
    for part in (files, scripts, traces, tables, memory, throughputs):
        cases += part(shared)
    return {case.name: case for case in cases}


@pytest.mark.traces
@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_answers_that_were_right_stay_right(known, name, tmp_path):
    """An input of somebody else would be answered wrongly again."""
    wrong = [
        f"{o.check.what}: {o.answer} for {o.check.right}"
        for o in judge(known[name], tmp_path)
        if not o.holds
    ]
    assert not wrong


@pytest.mark.traces
def test_every_variant_is_asked_for_what_its_faults_return(tmp_path):
    """A variant would count as right because nothing is asked of it."""
    cases = production(shared_folder(), tmp_path)
    assert len(cases) >= 14
    for case in cases:
        asked = [check.what for check in case.checks]
        is_faulty = "base" not in case.name
        assert is_faulty == any(what.startswith(GAIN) for what in asked), case.name


def test_held_out_jobs_are_asked_for_every_fault(tmp_path):
    """A held-out job would count as right because nothing is asked of it."""
    for case in held_out(tmp_path, 4):
        truth = json.loads(json.dumps([check.right for check in case.checks]))
        assert len(truth) >= 2
        assert (tmp_path / "held-out-517").is_dir()


def reply(*findings, causes=()):
    """Return the reply of a diagnosis."""
    return Reply(0, "", {"findings": list(findings), "causes": list(causes), "ranks": []})


def found(kind, gain=0.1, **where):
    """Return a finding."""
    return {
        "kind": kind, "where": where, "removal_gain_frac": gain, "claim": f"a {kind}",
    }  # fmt: skip


def test_blame_of_a_healthy_rank_is_seen_alone_and_in_a_list():
    """Healthy ranks would be blamed without a miss."""
    blamed = reply(found("straggler_rank", rank=3), found("straggler_rank", 0.3, ranks=[1, 2]))
    assert largest_healthy(blamed, {3}) == pytest.approx(30)
    assert largest_healthy(blamed, {1, 2}) == pytest.approx(10)
    assert largest_healthy(blamed, {1, 2, 3}) == 0


def test_findings_about_the_design_are_no_faults():
    """The bubble of a healthy job would pass for the culprit."""
    reported = names(reply(found("pipeline_bubble"), found("embedding_imbalance", stage=1)))
    assert reported == ["stage_imbalance stage 1"]


def test_answers_are_compared_with_their_tolerance():
    """A wrong answer would hold."""
    case = Case("one", "some", (), ())
    number = Check("gain", 5.0, lambda reply: 0.0, within=1.5)
    assert Outcome(case, number, 6.5).holds
    assert not Outcome(case, number, 6.6).holds
    assert not Outcome(case, number, None).holds
    assert not Outcome(case, replace(number, right="yes"), "no").holds
    assert says("it", "lost", first=True).read(reply({"claim": "it is lost"})) == "yes"
    assert says("it", "lost").read(reply({"claim": "it is found"})) == "no"


def test_the_table_lists_every_miss():
    """The suite would look better than it is."""
    case = Case("one", "some", (), ())
    check = Check("gain", 5.0, lambda reply: 0.0, within=1.5)
    text = report([Outcome(case, check, 5.5), Outcome(case, check, None)], ["another: absent"])
    assert "| some | 1 | 0 | 2 | 1 |" in text
    assert "| one | gain | 5.00 | no answer |  | miss |" in text
    assert "- another: absent" in text


def test_the_page_has_a_place_for_the_table(project_dir):
    """`--write` would leave the page as it is."""
    page = (project_dir / "docs" / "truth-foreign.md").read_text(encoding="utf-8")
    assert written(page, "new").count("new") >= 1
    assert page.index(BEGIN) < page.index(END)
    with pytest.raises(ValueError, match="lacks the lines"):
        written("nothing", "new")


def test_commands_run_the_code_of_this_checkout(tmp_path):
    """An older installation would be judged."""
    assert ask(("--version",), tmp_path).status == 0
