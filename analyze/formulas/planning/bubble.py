"""The idle time that each schedule imposes with equal stages, as formulas."""

from __future__ import annotations

from meshscope.probe.schema.terms import ScheduleKind

FORMULAS = {
    ScheduleKind.GPIPE: "(p-1)/m",
    ScheduleKind.ONE_F_ONE_B: "(p-1)/m",
    ScheduleKind.INTERLEAVED: "(p-1)/(m v)",
    ScheduleKind.ZB_H1: "(p-1)/(3 m)",
    ScheduleKind.ZB_V: "0 from m = 2p - 1",
    ScheduleKind.DUALPIPE_V: "(p-1)/(6 m)",
}
"""Idle over ideal time with equal stages and equal F, I and W, of p ranks, m microbatches and v
chunks. Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Qi et al. 2023, arXiv 2401.10241,
sections 2.3 and 6. That of DualPipeV is what the replay gives when the two passes of a pair
follow each other, as in the reference trainer, in place of overlapping."""
