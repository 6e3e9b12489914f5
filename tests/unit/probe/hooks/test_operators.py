"""The list of operators covers this torch, and its positions are right."""

import torch
import torch.distributed

from meshscope.probe.hooks.operators import NOT_COMMUNICATION, OPERATORS
from meshscope.probe.schema.terms import CollectiveKind


def test_every_operator_of_this_torch_is_known():
    """Fails when a new torch communicates in a way that would not be recorded."""
    names = torch._C._dispatch_get_all_op_names()
    present = {name.removeprefix("c10d::") for name in names if name.startswith("c10d::")}
    known = {operator.name for operator in OPERATORS} | NOT_COMMUNICATION
    assert present <= known
    assert known - present <= {"check_for_nan", "gather_into_tensor_"}  # of torch 2.13 and 2.15 on


def test_positions_match_the_schemas():
    """Fails when the group or the peer is looked for among the wrong arguments."""
    for operator in (own for own in OPERATORS if hasattr(torch.ops.c10d, own.name)):
        schema = getattr(torch.ops.c10d, operator.name).default._schema
        assert schema.arguments[operator.group_at].name == "process_group", operator.name
        if operator.peer_at is not None:
            assert schema.arguments[operator.peer_at].name in ("src", "dst")
        assert (operator.kind is None) == (operator.direction is not None)


def test_every_collective_kind_has_an_operator():
    """Fails when a kind of the tables can never be recorded."""
    recorded = {operator.kind for operator in OPERATORS} - {None}
    assert recorded == set(CollectiveKind) - {CollectiveKind.OTHER}
