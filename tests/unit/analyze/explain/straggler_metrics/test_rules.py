"""The published dependency rules on pipelines that can be followed by hand."""

from itertools import count

from meshscope.analyze.explain.straggler_metrics.rules import Operation, dependencies


class Pipeline:
    """Operations of one replica, named by what and where they are."""

    def __init__(self):
        self.operations, self.names = [], []
        self._seen = {}

    def add(self, stage, optype, *starts, chunk=-1, global_chunk=-1, dur_s=0.5):
        """Append operations of one type on one stage; their names end in their number."""
        numbers = self._seen.setdefault((stage, optype), count())
        for start in starts:
            seq = next(numbers)
            self.names.append(f"{optype} {seq} @{stage}")
            self.operations.append(
                Operation(stage, optype, seq, chunk, global_chunk, start, start + dur_s)
            )
        return self

    def found(self):
        """Return the dependencies by name: after -> set of before, groups, number unmatched."""
        found = dependencies(self.operations)
        before = {name: set() for name in self.names}
        for source, target in found.edges:
            before[self.names[target]].add(self.names[source])
        groups = {frozenset(self.names[i] for i in group) for group in found.groups}
        replicated = {frozenset(self.names[i] for i in group) for group in found.replicated}
        return before, groups, replicated, found.unmatched


def two_stages():
    """Return a 1F1B pipeline of two stages and three microbatches, computations and transfers."""
    job = Pipeline()
    for stage, forward, backward in ((0, (1, 2, 5), (4, 7, 9)), (1, (2, 4, 6), (3, 5, 7))):
        job.add(stage, "forward-compute", *forward, chunk=0, global_chunk=stage)
        job.add(stage, "backward-compute", *backward, chunk=0, global_chunk=stage)
    job.add(0, "forward-send", 1.6, 2.6, 5.6).add(0, "backward-recv", 3.1, 6.1, 8.1)
    return job.add(1, "forward-recv", 0.5, 3.6, 5.6).add(1, "backward-send", 3.6, 5.6, 7.6)


def test_transfers_lie_between_the_computations_that_they_serve():
    """A stage would compute before its input is there, or wait for what comes later."""
    before, groups, _, unmatched = two_stages().found()
    assert before["forward-recv 1 @1"] == {"forward-recv 0 @1", "forward-compute 0 @1"}
    assert before["forward-compute 1 @1"] == {"forward-recv 1 @1", "backward-compute 0 @1"}
    assert before["forward-send 2 @0"] == {"forward-send 1 @0", "forward-compute 2 @0"}
    assert frozenset({"forward-send 2 @0", "forward-recv 2 @1"}) in groups
    assert frozenset({"backward-send 0 @1", "backward-recv 0 @0"}) in groups
    assert (len(groups), unmatched) == (6, 0)


def test_the_first_backward_receive_waits_for_the_forward_two_places_before():
    """It would be free to start before the stage had anything to send."""
    before, *_ = two_stages().found()
    assert before["backward-recv 0 @0"] == {"forward-compute 0 @0"}
    assert before["backward-send 0 @1"] == {"backward-compute 0 @1"}


def test_transfers_outside_the_computations_are_alone():
    """Receives for the next step would be met with sends of this one."""
    job = two_stages().add(1, "forward-recv", 20.0).add(0, "forward-send", -5.0)
    before, groups, _, unmatched = job.found()
    assert frozenset({"forward-recv 3 @1"}) in groups
    assert frozenset({"forward-send 3 @0"}) in groups
    assert frozenset({"forward-send 0 @0", "forward-recv 0 @1"}) in groups
    assert before["forward-recv 3 @1"] == {"forward-recv 2 @1"}
    assert unmatched == 0


def test_a_transfer_without_its_peer_is_counted():
    """A hole in the recording would shift all later pairs unnoticed."""
    job = Pipeline()
    for stage in (0, 1):
        job.add(stage, "forward-compute", 1, 2, chunk=0, global_chunk=stage)
    job.add(0, "forward-send", 1.6, 2.6).add(1, "forward-recv", 0.5)
    _, groups, _, unmatched = job.found()
    assert unmatched == 1
    assert {frozenset({"forward-send 1 @0"})} < groups


def tail(*reduced):
    """Return one worker with two chunks, its gathers, and a tail with given reductions."""
    job = Pipeline()
    for chunk in (0, 1):
        job.add(0, "forward-compute", 1 + chunk, chunk=chunk, global_chunk=chunk)
    for chunk in (1, 0):
        job.add(0, "backward-compute", 4 - chunk, chunk=chunk, global_chunk=chunk)
        job.add(0, "params-all-gather", 0.2 + 0.1 * chunk, chunk=1 - chunk)
        job.add(0, "grads-reduce-scatter", 5 - chunk, chunk=chunk)
    kinds = ("gc", "layernorm-grads-all-reduce", *reduced, "optimizer-clip-main-grad", "optimizer")
    for place, optype in enumerate(kinds):
        job.add(0, optype, 6 + place)
    return job.found()


def test_a_chunk_waits_for_its_own_parameters():
    """A chunk would compute with parameters of the step before."""
    before, *_ = tail()
    assert before["forward-compute 0 @0"] == {"params-all-gather 0 @0"}
    assert before["forward-compute 1 @0"] == {"forward-compute 0 @0", "params-all-gather 1 @0"}


def test_gradients_are_reduced_after_everything_or_chunk_by_chunk():
    """Overlapped reductions would be put at the end of the step, or the others into it."""
    before, _, replicated, _ = tail()
    assert before["grads-reduce-scatter 0 @0"] >= {"layernorm-grads-all-reduce 0 @0"}
    assert before["optimizer-clip-main-grad 0 @0"] == {"grads-reduce-scatter 1 @0"}
    assert frozenset({"grads-reduce-scatter 0 @0"}) in replicated
    before, *_ = tail("separate-grads-all-reduce")
    assert "backward-compute 0 @0" in before["grads-reduce-scatter 0 @0"]
    assert "backward-compute 1 @0" in before["grads-reduce-scatter 1 @0"]
    assert before["layernorm-grads-all-reduce 0 @0"] == {"gc 0 @0", "grads-reduce-scatter 1 @0"}
    assert before["optimizer-clip-main-grad 0 @0"] == {"separate-grads-all-reduce 0 @0"}


def test_what_a_job_does_not_have_is_passed_over():
    """A job without a kind of operation would have no tail."""
    job = Pipeline().add(0, "backward-compute", 1).add(0, "optimizer", 3)
    before, groups, replicated, unmatched = job.found()
    assert before["optimizer 0 @0"] == {"backward-compute 0 @0"}
    assert not groups | replicated
    assert unmatched == 0
