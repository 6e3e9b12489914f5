"""Shipments of tokens to experts."""

from __future__ import annotations

import pytest
import torch

from meshscope.reference_trainer.parallel.expert_parallel import Dispatch, ship_all, ship_capacity


def test_assignments_are_sent_in_the_order_of_their_experts():
    """Fails if rows arrive at another expert than the router chose."""
    shipment = ship_all(torch.tensor([2, 0, 2, 1, 0]), 4)
    assert shipment.assignments.tolist() == [1, 4, 3, 0, 2]
    assert shipment.rows.tolist() == [2, 1, 2, 0]


def test_a_capacity_drops_what_comes_last_and_fills_up_with_empty_rows():
    """Fails if more is sent than there is room for, or first choices lose to second ones."""
    shipment = ship_capacity(torch.tensor([0, 0, 1, 0]), 2, 1.0)
    assert (shipment.assignments.tolist(), shipment.rows) == ([0, 1, 2, 4], 2)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_come_back_in_their_order(comm, alone, count):
    """Fails if a token gets another token's result."""
    experts = torch.randint(count, (12,), generator=torch.Generator().manual_seed(0))
    shipment = ship_all(experts, count)
    rows = torch.randn(12, 3)[shipment.assignments].requires_grad_()
    dispatch = Dispatch(shipment, count, alone, comm)
    factors = torch.arange(1.0, count + 1)
    results = dispatch.run(rows, lambda index, part: part * factors[index])
    sent_to = experts[shipment.assignments]
    assert torch.equal(results, rows * factors[sent_to][:, None])
    results.sum().backward()
    assert torch.equal(rows.grad, factors[sent_to][:, None].expand(12, 3))
