"""Schedules by name, and microbatches by the buffers that carry them."""

import pytest
import torch
from torch.distributed.pipelining import schedules

from meshscope.probe.hooks.pipeline import SCHEDULES, schedule_kind
from meshscope.probe.hooks.tags import MessageTags
from meshscope.probe.recording.record_heads import NOT_CARRIED, carried
from meshscope.probe.schema.terms import Direction, ScheduleKind


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_schedules_exist_in_this_torch(name):
    """Fails when torch renames a schedule, which would then count as another."""
    assert schedule_kind(getattr(schedules, name)) is SCHEDULES[name]


def test_a_schedule_of_the_user_counts_as_its_base_or_other():
    """Fails when a subclass of a known schedule is not recognised."""

    class Own(schedules.Schedule1F1B):
        pass

    assert schedule_kind(Own) is ScheduleKind.ONE_F_ONE_B
    assert schedule_kind(schedules.PipelineScheduleMulti) is ScheduleKind.OTHER


def test_a_tag_is_used_once():
    """Fails when a buffer that is used again keeps the microbatch of an earlier message."""
    tags, buffer = MessageTags(), torch.ones(2)
    tags.put(Direction.SEND, buffer, 3, 1)
    assert tags.take(Direction.RECV, [buffer]) == NOT_CARRIED
    assert tags.take(Direction.SEND, [buffer]) == carried(3, 1)
    assert tags.take(Direction.SEND, [buffer]) == NOT_CARRIED


def test_tags_of_messages_that_never_come_do_not_pile_up():
    """Fails when a schedule that builds operations without sending them leaks memory."""
    tags = MessageTags()
    buffers = [torch.ones(1) for _ in range(2000)]
    for buffer in buffers:
        tags.put(Direction.SEND, buffer, 0, 0)
    assert len(tags.announced) <= 1024
