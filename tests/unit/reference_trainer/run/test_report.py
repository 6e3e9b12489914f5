"""Losses on their way to the reader."""

from __future__ import annotations

import json

import torch

from meshscope.reference_trainer.run.report import LossReport


def test_losses_are_reported_in_step_order_and_kept(tmp_path):
    """Fails if a loss is lost, reordered or printed with the wrong step."""
    lines = []
    report = LossReport(lines.append)
    for step, loss in enumerate((2.5, 1.25)):
        report.add(step, torch.tensor(loss), dur_ns=3_000_000)
    report.finish()
    report.begin(tmp_path / "new" / "losses.json")
    report.write(tmp_path / "new" / "losses.json")
    assert [line.split() for line in lines] == [
        ["step", "0", "loss", "2.500000", "3.0", "ms"],
        ["step", "1", "loss", "1.250000", "3.0", "ms"],
    ]
    assert json.loads((tmp_path / "new" / "losses.json").read_text()) == {
        "first_step": 0,
        "loss": [2.5, 1.25],
    }


def test_gradient_norms_arrive_with_their_losses(tmp_path):
    """Fails if a measured norm is not printed or not written."""
    lines = []
    report = LossReport(lines.append)
    report.add(0, torch.tensor(2.5), dur_ns=3_000_000, grad_norm=torch.tensor(0.75))
    report.finish()
    report.write(tmp_path / "losses.json")
    assert lines[0].endswith("grad norm 0.7500")
    written = json.loads((tmp_path / "losses.json").read_text())
    assert written == {"first_step": 0, "loss": [2.5], "grad_norm": [0.75]}
