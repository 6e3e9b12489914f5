"""What a rank holds of the training's state, in the words of torch.distributed.checkpoint.

Every tensor is saved under a name of the whole model, ``weights.blocks.3.qkv.weight`` or
``exp_avg.blocks.3.qkv.weight``, with the shape that it has on one rank, and every rank
says which boxes of it are here (``weight_places.py``). Nothing in a checkpoint knows of
ranks, so a rank of any other mesh finds its own boxes in those that were saved.

Queries, keys and values are one matrix of which tensor parallelism slices each third;
its shape here is (3, outputs / 3, inputs), in which a slice is one box. Weights are those
that the optimizer updates, in fp32 whatever the model computes in.

DCP's planners are told of boxes, where its own would look at DTensors: parts of
flat optimizer buffers are intervals of a weight, which no DTensor placement describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ..config.config import TrainerConfig
from ..parallel.weight_places import Box, box_of, pieces
from ..replica.memory_account import local_part
from ..replica.optimizer import fill_state
from ..replica.pipeline_parallel import own_stages, stage_part
from ..replica.replica import Replica

_TIED = {"head.output": "embedding.tokens"}


class TensorPart:
    """An interval of a rank's slice of a tensor.

    Args:
        box: Where the slice lies in the whole tensor.
        start: First element of the interval in the slice.
        values: The interval, flat; boxes are views of it.
        arrived: Set when ``values`` are there; None: they are.
    """

    def __init__(
        self, box: Box, start: int, values: Tensor, arrived: torch.cuda.Event | None = None
    ) -> None:
        self.values = values
        self._box, self._start, self._arrived = box, start, arrived
        self._pieces = {
            piece.offsets: piece for piece in pieces(box, start, start + values.numel())
        }

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        return self._box.whole

    def copied_to(self, values: Tensor, arrived: torch.cuda.Event | None) -> TensorPart:
        """Return the same part of the tensor with its values elsewhere."""
        return TensorPart(self._box, self._start, values, arrived)

    def view(self, offsets: Sequence[int] | None) -> Tensor:
        """Return the box that begins there, waiting for values on their way."""
        if self._arrived is not None:
            self._arrived.synchronize()
        piece = self._pieces[tuple(offsets or ())]
        size = torch.Size(piece.sizes).numel()
        return self.values.narrow(0, piece.start, size).view(piece.sizes)

    def write_items(self, name: str) -> list[WriteItem]:
        """Return what to save of this tensor."""
        whole = torch.Size(self.shape)
        properties = TensorProperties(dtype=self.values.dtype)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=whole),
            )
            for chunk in self._chunks()
        ]

    def read_items(self, name: str, saved: TensorStorageMetadata) -> list[ReadItem]:
        """Return what to load of this tensor.

        Raises:
            ValueError: The saved one has another shape.
        """
        if tuple(saved.size) != self.shape:
            raise ValueError(f"{name} is {tuple(saved.size)} there and {self.shape} here")
        return create_read_items_for_chunk_list(name, saved, self._chunks())

    def _chunks(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes))
            for piece in self._pieces.values()
        ]


State = dict[str, TensorPart]
"""What a rank saves and loads, by the name of the whole tensor."""


def training_state(
    config: TrainerConfig, pp_position: int, stages: Sequence[nn.Module], replica: Replica
) -> State:
    """Return weights and optimizer state of this rank, as views; the optimizer must have state.

    Args:
        config: The run.
        pp_position: This rank's place on the pipeline axis.
        stages: Its stages, by chunk.
        replica: Trains them.
    """
    names = _global_names(config, pp_position, stages)
    state: State = {}
    for part in replica.trained_parts():
        name, box = names[part.weight], box_of(part.weight)
        tensors = {"weights": part.trained, **_averages(config, replica, part.trained)}
        for kind, tensor in tensors.items():
            values = local_part(tensor.detach()).view(-1)[part.place]
            state[f"{kind}.{name}"] = TensorPart(box, part.start, values)
    return state


def prepare_to_load(config: TrainerConfig, replica: Replica, steps_done: int) -> None:
    """Give the optimizer the state into which a checkpoint is loaded."""
    fill_state(config.train, replica.optimizer, steps_done)


class PartSavePlanner(DefaultSavePlanner):
    """Plans to save the parts of a ``State``."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """Return what this rank holds; DCP lets one rank write what several hold."""
        self.plan = SavePlan(
            [item for name, part in self.state_dict.items() for item in part.write_items(name)]
        )
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """Return the values of a box."""
        part: TensorPart = self.state_dict[index.fqn]
        return part.view(index.offset)


class PartLoadPlanner(DefaultLoadPlanner):
    """Plans to load the parts of a ``State`` from whatever parts were saved."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> None:
        """Take what to load, and what was saved."""
        self.state_dict = self.original_state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """Return what this rank needs.

        Raises:
            ValueError: A tensor is not in the checkpoint, or has another shape there.
        """
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, part in self.state_dict.items():
            saved = self.metadata.state_dict_metadata.get(name)
            if not isinstance(saved, TensorStorageMetadata):
                raise ValueError(f"{name} is not in the checkpoint")
            items += part.read_items(name, saved)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Return where the values of a box go."""
        part: TensorPart = self.state_dict[index.fqn]
        return part.view(index.offset)


def _global_names(
    config: TrainerConfig, pp_position: int, stages: Sequence[nn.Module]
) -> Mapping[nn.Parameter, str]:
    """Return the name in the whole model of each weight of this rank."""
    names: dict[nn.Parameter, str] = {}
    for index, stage in zip(own_stages(config, pp_position), stages, strict=True):
        layers = stage_part(config, index).layers
        for name, weight in stage.named_parameters():
            if name.startswith("blocks."):
                _, block, rest = name.split(".", 2)
                names[weight] = f"blocks.{layers[int(block)]}.{rest}"
            else:
                names[weight] = _TIED.get(name, name) if config.model.tied else name
    return names


def _averages(config: TrainerConfig, replica: Replica, trained: nn.Parameter) -> dict[str, Tensor]:
    """Return what the optimizer keeps for a weight."""
    state = replica.optimizer.state[trained]
    return {name: state[name] for name in config.train.averages}
