"""The published straggler metrics the slow way: names, dictionaries and an event loop.

Written from the description of the method alone, with no array and none of the
product's modules, so that the two can be compared.
"""

from collections import defaultdict
from itertools import pairwise
from statistics import fmean, median

COMM = {"params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce",
        "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad"}  # fmt: skip
OVER_REPLICAS = COMM - {"layernorm-grads-all-reduce", "embedding-grads-all-reduce"}
AHEAD = {"forward": 1, "backward": -1}
EPS = 5e-5


class SlowJob:
    """One job: recorded times by step, replica and operation name (type, number, stage)."""

    def __init__(self, frame):
        self.start, self.end, self.dur = {}, {}, {}
        self.rank = {}
        example = (frame["step"].min(), frame["dp_rank"].min())
        self.ops = {}
        ends = frame["start_ts"] + frame["duration"]
        for row, end in zip(frame.to_dict("records"), ends, strict=True):
            name = (str(row["optype"]), row["seq_id"], row["stage"])
            key = (row["step"], row["dp_rank"], name)
            self.start[key], self.end[key] = float(row["start_ts"]), float(end)
            self.dur[key] = float(row["duration"])
            self.rank[row["dp_rank"], row["stage"]] = row["rank"]
            if key[:2] == example:
                self.ops[name] = row | {"end": float(end)}
        self.steps = sorted({step for step, _, _ in self.start})
        self.replicas = sorted({replica for _, replica, _ in self.start})
        self.stages = sorted({stage for _, _, stage in self.ops})
        self.deps = defaultdict(set)
        self.groups = []
        self._depend()
        self.group_of = {name: group for group in self.groups for name in group}
        self.members = {key: self._members(*key) for key in self.start}
        self.own = {key: self._own(key) for key in self.start}
        self.delay = {key: self._delay(key) for key in self.start}
        self._order = {step: [k for k in self.start if k[0] == step] for step in self.steps}
        by_type = defaultdict(list)
        for key, value in self.own.items():
            by_type[key[2][0]].append(value)
        self.ideal = {
            kind: median(values) if _communicates(kind) else fmean(values)
            for kind, values in by_type.items()
        }

    def _depend(self):
        for stage in self.stages:
            self._worker(stage)
        sends = {}
        chunks = max(row["mc"] for row in self.ops.values()) + 1
        for stage in self.stages:
            for way in AHEAD:
                for end in ("send", "recv"):
                    sends[way, end, stage] = self._carry(stage, way, end, chunks)
        for way, hop in AHEAD.items():
            for stage in self.stages:
                peers = sends[way, "recv", (stage + hop) % len(self.stages)]
                self.groups += [
                    list(pair) for pair in zip(sends[way, "send", stage], peers, strict=True)
                ]
        self.groups.append([n for n in self.ops if n[0] == "embedding-grads-all-reduce"])
        self.groups.append([n for n in self.ops if n[0] == "optimizer-clip-main-grad"])
        grouped = {name for group in self.groups for name in group}
        self.groups += [
            [n] for n in self.ops
            if n not in grouped and _communicates(n[0]) and n[0] != "layernorm-grads-all-reduce"
        ]  # fmt: skip

    def _timed(self, stage, *kinds):
        found = [n for n in self.ops if n[2] == stage and n[0] in kinds]
        return sorted(found, key=lambda n: (self.ops[n]["start_ts"], n[1], n[0]))

    def _row_up(self, names):
        for before, after in pairwise(names):
            self.deps[after].add(before)

    def _worker(self, stage):
        compute = self._timed(stage, "forward-compute", "backward-compute")
        self._row_up(compute)
        for way in AHEAD:
            self._row_up(self._timed(stage, f"{way}-send"))
            self._row_up(self._timed(stage, f"{way}-recv"))
        self._row_up(self._timed(stage, "params-all-gather", "grads-reduce-scatter"))
        kinds = [name[0] for name in compute]
        before = kinds.index("backward-compute") - 2
        for kind in ("backward-recv", "backward-send"):
            if before >= 0 and (kind, 0, stage) in self.ops:
                self.deps[kind, 0, stage].add(compute[before])
        for gather in self._timed(stage, "params-all-gather"):
            chunk = self.ops[gather]["mc"]
            first = [n for n in compute if n[0] == "forward-compute" and self.ops[n]["mc"] == chunk]
            self.deps[first[0]].add(gather)
        last = max(compute, key=lambda n: self.ops[n]["end"])
        self._row_up([last, ("gc", 0, stage), ("layernorm-grads-all-reduce", 0, stage)])
        tail = [("layernorm-grads-all-reduce", 0, stage)]
        tail += self._timed(stage, "embedding-grads-all-reduce")
        scatters = self._timed(stage, "grads-reduce-scatter")
        separate = self._timed(stage, "separate-grads-all-reduce")
        if separate:
            for scatter in scatters:
                chunk = self.ops[scatter]["mc"]
                own = [n for n in compute if n[0][0] == "b" and self.ops[n]["mc"] == chunk]
                self.deps[scatter].add(max(own, key=lambda n: self.ops[n]["end"]))
            self.deps[tail[0]].add(scatters[-1])
            tail += separate
        else:
            tail += scatters
        self._row_up([*tail, ("optimizer-clip-main-grad", 0, stage), ("optimizer", 0, stage)])

    def _carry(self, stage, way, end, chunks):
        """Tie the transfers of one kind to their computations; return those with a peer."""
        compute = self._timed(stage, f"{way}-compute")
        transfers = self._timed(stage, f"{way}-{end}")
        if end == "recv":
            limit = max(self.ops[n]["start_ts"] for n in compute) + EPS
            transfers = [n for n in transfers if self.ops[n]["start_ts"] <= limit]
        else:
            limit = min(self.ops[n]["end"] for n in compute) - EPS
            transfers = [n for n in transfers if self.ops[n]["end"] >= limit]
        late = end == "recv" and len(transfers) + 1 == len(compute)
        carrying = []
        for k, transfer in enumerate(transfers, start=int(late)):
            if end == "recv":
                self.deps[compute[k]].add(transfer)
                if k:
                    self.deps[transfer].add(compute[k - 1])
            else:
                self.deps[transfer].add(compute[k])
            hop = AHEAD[way] if end == "send" else -AHEAD[way]
            if 0 <= self.ops[compute[k]]["gmc"] + hop < chunks * len(self.stages):
                carrying.append(transfer)
        return carrying

    def _members(self, step, replica, name):
        if name not in self.group_of:
            return None
        replicas = self.replicas if name[0] in OVER_REPLICAS else [replica]
        return [(step, r, member) for r in replicas for member in self.group_of[name]]

    def _own(self, key):
        group = self.members[key]
        if group is None:
            return self.dur[key]
        return _settled(self.end[key] - max(self.start[member] for member in group))

    def _delay(self, key):
        step, replica, name = key
        ends = [self.end[step, replica, before] for before in self.deps[name]]
        if not ends:
            ends = [min(value for other, value in self.start.items() if other[0] == step)]
        return _settled(self.start[key] - max(ends))

    def replay(self, step, keeps, delayed=lambda key: False):
        """Run one step event by event; return starts and ends.

        Args:
            step: Its number.
            keeps: Which operations keep their own length instead of the ideal one.
            delayed: Which keep their launch delay.
        """
        start, end = {}, {}
        waiting, order = self._order[step], []
        while waiting:
            left = []
            for key in waiting:
                ready = [(step, key[1], before) for before in self.deps[key[2]]]
                if any(before not in end for before in ready):
                    left.append(key)
                    continue
                first = max((end[before] for before in ready), default=0.0)
                start[key] = first + (self.delay[key] if delayed(key) else 0.0)
                order.append(key)
                group = self.members[key] or [key]
                if all(member in start for member in group):
                    joined = max(start[member] for member in group)
                    for member in group:
                        kind = member[2][0]
                        end[member] = joined + (
                            self.own[member] if keeps(member) else self.ideal[kind]
                        )
            assert len(left) < len(waiting), "operations wait for each other"
            waiting = left
        # The next replay of the step then meets every operation when it is ready.
        self._order[step] = order
        return start, end

    def step_times(self, keeps, delayed=lambda key: False):
        """Return for each step: first start to last end, and end of the last optimizer."""
        found = []
        for step in self.steps:
            start, end = self.replay(step, keeps, delayed)
            last = max(value for key, value in end.items() if key[2][0] == "optimizer")
            found.append((max(end.values()) - min(start.values()), last))
        return found


def _communicates(kind):
    return kind in COMM or kind.endswith(("-send", "-recv"))


def _settled(value):
    return 0.0 if value <= -0.01 else value
