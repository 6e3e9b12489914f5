"""What the server of forked ranks imports: all that ranks would import one by one."""

import gc

from tests.distributed import (  # noqa: F401 - imported for the ranks, which are forked from here
    checkpoint_job,
    coverage_scenarios,
    cycled_job,
    disk_job,
    flight_recorder_job,
    group_making_job,
    handwritten_mesh_job,
    pipeline_job,
    recorded_training,
    replica_job,
    simulation_job,
    split_model_job,
    trainer_job,
    training_job,
)

# A rank that collects its garbage would otherwise walk through, and so copy, all of torch.
gc.collect()
gc.freeze()
