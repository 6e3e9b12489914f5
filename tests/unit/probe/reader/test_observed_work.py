"""What ran of a model is a mean over ranks, where all tell the same kind of things."""

import pytest

from meshscope.probe.reader.observed_work import observed_of_ranks

TRAINED = {"ran_products": 120.0, "ran_layers": 4.0, "complete": True}
EVALUATED = TRAINED | {"ran_products": 180.0, "ran_without": 60.0, "forward_rows": 1.5}


def manifests(*told):
    """Return the manifests of ranks from 1 on that told this."""
    return {0: {}} | {
        rank: {"annotations": {} if own is None else {"observed": own}}
        for rank, own in enumerate(told, start=1)
    }


def test_an_evaluation_on_one_rank_counts_once():
    """Fails when the FLOPs of what rank 0 alone evaluates count on every rank, or those of others are lost."""
    found = observed_of_ranks(EVALUATED, manifests(TRAINED, TRAINED))
    assert found == TRAINED | {"ran_products": 140.0, "ran_without": 20.0, "forward_rows": 0.5}
    other = observed_of_ranks(TRAINED, manifests(EVALUATED, TRAINED))
    assert other == found


@pytest.mark.parametrize(
    "told",
    [
        (None, TRAINED),
        ({"varies": True}, TRAINED),
        (TRAINED | {"ran_attention": 3.0}, TRAINED),
        ({"ran_products": "many"}, TRAINED),
        (TRAINED | {"ran_products": float("nan")}, TRAINED),
        (),
    ],
)
def test_where_others_tell_nothing_or_other_things_rank_0_counts(told):
    """Fails when the part of the model that another stage runs, or a damaged manifest, changes the FLOPs of the job."""
    assert observed_of_ranks(EVALUATED, manifests(*told)) == EVALUATED


def test_without_observation_there_is_none():
    """Fails when a job that observed nothing is given FLOPs."""
    assert observed_of_ranks(None, manifests(TRAINED)) is None
