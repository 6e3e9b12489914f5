"""Five faults at once on a recorded job made ideal: the shares must sum to what they cost.

The job is the public trace ST (pipeline 4 x data 2, 32 steps). Its program is kept, its
times are not: each pass takes the mean of its direction on every stage, each transfer the
least of its like, nothing else takes any time. Five known faults are then added to the
edges, and every coalition of them is replayed, by the engine and by the longest path
through the same edges in plain Python.
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest

from meshscope.analyze import load_trace
from meshscope.analyze.align.steps.time_lookup import microbatch_spans
from meshscope.analyze.explain.causes.shapley import Joining, coalitions, membership, shares
from meshscope.analyze.explain.replay.contraction import contract
from meshscope.analyze.explain.replay.marks import END
from meshscope.analyze.explain.replay.program import Program
from meshscope.analyze.explain.replay.scenarios import replay_scenarios
from meshscope.analyze.findings.measure import measure

pytestmark = pytest.mark.traces

MS = 1e6
SEED = 20_26_11
SLOW_RANK, SLOW_FACTOR = 6, 1.2
SLOW_STAGE, STAGE_FACTOR = 1, 1.3
LINK_GROUP, LINK_NS = "dp stage 1", 50 * MS
PAUSE_NS, PAUSE_CHANCE = 300 * MS, 0.1
LOADER_NS = 80 * MS
FAULTS = ("slow rank", "slow stage", "slow link", "gc pause", "data loader")
ALL = (1 << len(FAULTS)) - 1


@dataclass(frozen=True)
class Faulty:
    """The ideal program with five faults, and the step time of every coalition of them."""

    program: Program
    effects: np.ndarray
    """What each fault adds to each edge, ns, ``(edges, faults)``."""
    times: np.ndarray
    """By the engine, ns; the index is the bit mask of the coalition."""
    shares: dict[str, float]

    def loss(self, mask: int) -> float:
        """Return what a coalition costs, ns a step."""
        return float(self.times[mask] - self.times[0])


@pytest.fixture(scope="module")
def faulty(traces_dir) -> Faulty:
    """Return the ideal ST with its five faults, replayed once."""
    account = measure(load_trace(traces_dir / "straggler_analysis" / "trace-ST.parquet"))
    program, passes = account.program, pass_ns(account)
    effects = fault_effects(account, passes)
    ideal = np.concatenate([passes, np.zeros(len(program.members.mark)), best_wires(program)])
    program = with_weights(program, ideal + effects.sum(axis=1))
    order = Joining((), [[fault] for fault in range(len(FAULTS))])
    masks = coalitions(order)
    times, _ = replay_scenarios(program, effects, membership(masks, len(FAULTS)))
    values = shares(order, masks, times)
    return Faulty(program, effects, times, dict(zip(FAULTS, values.tolist(), strict=True)))


def pass_ns(account) -> np.ndarray:
    """Return the ideal computing on every work edge: the part of each pass on it, at its mean."""
    program = account.program
    spans = microbatch_spans(account.trace, program.windows)
    mean = spans.groupby("kind", observed=True)["dur_ns"].mean()
    marks = program.marks.iloc[program.work_edges].reset_index(drop=True)
    total = np.zeros(len(marks))
    by_place = spans.groupby(["rank", "step"], observed=True)
    for place, edges in marks.groupby(["rank", "step"]):
        high = edges["start_ns"].to_numpy(np.float64)[:, None]
        low = high - edges["work_ns"].to_numpy(np.float64)[:, None]
        own = by_place.get_group(place)
        start, dur = own["start_ns"].to_numpy(np.float64), own["dur_ns"].to_numpy(np.float64)
        inside = (np.minimum(high, start + dur) - np.maximum(low, start)).clip(min=0) / dur
        total[edges.index] = inside @ own["kind"].map(mean).to_numpy(np.float64)
    return total


def best_wires(program: Program) -> np.ndarray:
    """Return, for every wait, the least wire time of the operations that are like its own."""
    best = program.events.groupby(["axis", "kind"], observed=True)["wire_ns"].transform("min")
    event = program.marks["event"].to_numpy()[program.waits]
    return best.to_numpy(np.float64)[event].clip(min=0)


def fault_effects(account, passes: np.ndarray) -> np.ndarray:
    """Return what each fault adds to each edge, ns, ``(edges, faults)``."""
    program = account.program
    marks = program.marks
    rank, step = (marks[name].to_numpy()[program.work_edges] for name in ("rank", "step"))
    stage = np.array([account.stage[one] for one in rank.tolist()])
    first = np.append(True, (rank[1:] != rank[:-1]) | (step[1:] != step[:-1]))
    computes = np.flatnonzero(passes > 0)
    _, at = np.unique(np.column_stack([rank, step])[computes], axis=0, return_index=True)
    hit = np.random.default_rng(SEED).random(len(at)) < PAUSE_CHANCE
    effects = np.zeros((program.edge_count, len(FAULTS)))
    work = effects[: len(passes)]
    work[:, 0] = np.where(rank == SLOW_RANK, (SLOW_FACTOR - 1) * passes, 0)
    work[:, 1] = np.where(stage == SLOW_STAGE, (STAGE_FACTOR - 1) * passes, 0)
    work[computes[at[hit]], 3] = PAUSE_NS
    work[first, 4] = LOADER_NS
    events = program.events.iloc[marks["event"].to_numpy()[program.waits]]
    held = (events["group_id"] == LINK_GROUP) & (events["kind"] == "reduce_scatter")
    effects[program.edge_count - len(program.waits) :, 2] = np.where(held, LINK_NS, 0)
    return effects


def with_weights(program: Program, weight: np.ndarray) -> Program:
    """Return a program with other weights, in which all ranks begin a step at the same time."""
    marks = program.marks.copy()
    roots = marks["is_root"].to_numpy(bool)
    begin = marks[roots].groupby("step")["start_ns"].transform("min")
    marks.loc[roots, "start_ns"] = begin
    marks.loc[roots, "end_ns"] = begin
    work = np.zeros(len(marks))
    work[program.work_edges] = weight[: len(program.work_edges)]
    wires = weight[program.edge_count - len(program.waits) :]
    edges = program.contraction.edges._replace(
        is_at_once=work[program.waits] == 0, wire_ns=wires, offset_ns=np.zeros(len(wires))
    )
    marks["work_ns"] = work
    return replace(program, marks=marks, contraction=contract(edges), wire_ns=wires)


class PlainReplay:
    """Longest paths through the edges of a program, one after the other.

    A mark is as late as the one before it plus the work between; an operation as the last
    issue of its members; a wait at least as its operation plus its wire.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        is_root = program.marks["is_root"].to_numpy(bool)
        self._previous = np.where(is_root, -1, np.arange(len(is_root)) - 1).tolist()
        self._join, self._start = (program.marks[c].tolist() for c in ("join", "start_ns"))
        self._members: dict[int, list[int]] = {}
        for mark, join in zip(*(part.tolist() for part in program.members), strict=True):
            self._members.setdefault(join, []).append(mark)
        self._waits = set(program.waits.tolist())
        self._order = self._topological()

    def step_time_ns(self, weight: np.ndarray) -> float:
        """Return the mean over the steps from the common start to the end of the last rank."""
        program = self._program
        first = program.edge_count - len(program.waits)
        work = dict(zip(program.work_edges.tolist(), weight.tolist(), strict=False))
        wire = dict(zip(program.waits.tolist(), weight[first:].tolist(), strict=True))
        time: dict[int, float] = {}
        for mark in self._order:
            before = self._previous[mark]
            time[mark] = time[before] + work[mark] if before >= 0 else self._start[mark]
            if mark in wire:
                complete = max(time[one] for one in self._members[self._join[mark]])
                time[mark] = max(time[mark], complete + wire[mark])
        marks = program.marks.assign(time=[time[mark] for mark in range(len(program.marks))])
        ends = marks[(marks["mark"] == END) & ~marks["is_root"]]
        begin = marks[marks["is_root"]].groupby("step")["start_ns"].min()
        return float((ends.groupby("step")["time"].max() - begin).mean())

    def _topological(self) -> list[int]:
        """Return the marks so that each comes after all that it depends on."""
        order: dict[int, None] = {}
        stack = list(range(len(self._previous)))[::-1]
        while stack:
            mark = stack[-1]
            needs = [self._previous[mark]] if self._previous[mark] >= 0 else []
            needs += self._members[self._join[mark]] if mark in self._waits else []
            missing = [one for one in needs if one not in order]
            if missing:
                stack += missing
            else:
                order[stack.pop()] = None
        return list(order)


def test_shares_sum_to_what_the_faults_cost_together(faulty):
    """The account of a job with several faults would not add up."""
    assert faulty.loss(ALL) > 0.1 * faulty.times[0]
    assert sum(faulty.shares.values()) == pytest.approx(faulty.loss(ALL), rel=1e-9)


def test_every_coalition_is_the_longest_path_through_the_edges(faulty):
    """The engine, and with it every share, would be wrong while its sums still hold."""
    clean = faulty.program.base_ns - faulty.effects.sum(axis=1)
    replay = PlainReplay(faulty.program)
    for mask, engine in enumerate(faulty.times.tolist()):
        held = [(mask >> fault) & 1 for fault in range(len(FAULTS))]
        plain = replay.step_time_ns(clean + faulty.effects @ held)
        assert engine == pytest.approx(plain, rel=1e-9)


def test_shares_are_averages_over_all_orders_of_joining(faulty):
    """Shares would sum and yet favour the fault that happens to come first."""
    for own, name in enumerate(FAULTS):
        others = [fault for fault in range(len(FAULTS)) if fault != own]
        by_size = [
            np.mean(
                [
                    faulty.times[mask | 1 << own] - faulty.times[mask]
                    for chosen in combinations(others, size)
                    for mask in [sum(1 << fault for fault in chosen)]
                ]
            )
            for size in range(len(FAULTS))
        ]
        assert faulty.shares[name] == pytest.approx(np.mean(by_size), rel=1e-9, abs=1e-3)


def test_neither_alone_nor_removed_effects_sum_to_the_loss(faulty):
    """One of the two could stand for the share, and a waterfall of it would not close."""
    alone = sum(faulty.loss(1 << fault) for fault in range(len(FAULTS)))
    removed = sum(faulty.loss(ALL) - faulty.loss(ALL ^ 1 << fault) for fault in range(len(FAULTS)))
    loss = faulty.loss(ALL)
    print(f"\nloss {loss / MS:.1f} ms a step of {faulty.times[0] / MS:.1f} ms")
    print(
        f"sum of alone effects {alone / loss - 1:+.1%}, of remove-one effects {removed / loss - 1:+.1%}"
    )
    print("shares, ms:", {name: round(ns / MS, 3) for name, ns in faulty.shares.items()})
    assert abs(alone / loss - 1) > 0.01
    assert abs(removed / loss - 1) > 0.01


def test_a_link_that_slack_absorbs_is_worth_nothing(faulty):
    """A link would be repaired that nobody waits for."""
    link = FAULTS.index("slow link")
    assert faulty.effects[:, link].sum() > 0
    assert faulty.shares["slow link"] == pytest.approx(0, abs=1e-3)
    assert faulty.times[ALL] == pytest.approx(faulty.times[ALL ^ 1 << link], abs=1e-3)
