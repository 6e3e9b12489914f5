"""What the hooks take from the first step of a job on, by their own measure; prints figures, asserts none.

    python bench/first_steps.py [--steps 400]

Two ranks with many collectives in a short step train under ``meshscope run`` as a user would start
them, with the default budget. Each line is a stretch of steps that were recorded alike: all of them at
first, then windows of steps, because so many collectives in such a step are over the budget. The
first step is in none: it is the start of the job. The last line holds what the first 20 steps took against
what they would have taken with all of them recorded.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.manifest import RECORDING_KEY
from meshscope.probe.schema.sampling import is_recorded

COLLECTIVES = 17
PAUSE_S = 0.0058
FIRST_STEPS = 20
JOB = f"""
import sys, threading, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
batch, messages = torch.ones(8, 64), [torch.ones(1024) for _ in range({COLLECTIVES})]
for _ in range(int(sys.argv[1])):
    for message in messages:
        threading.Event().wait({PAUSE_S})
        dist.all_reduce(message)
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def train(folder, steps):
    """Train under the probe; return the run."""
    job = folder / "job.py"
    job.write_text(JOB, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "meshscope", "run", "--runs", str(folder), "--run-id", "run", "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        *(str(job), str(steps)),
    ]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return read_run(folder / "run")


def first_steps_ms(stretches, bare_ns):
    """Return what the first steps took, and what they would with the others recorded as later ones are."""
    first, sampled = stretches[:2]
    begins, one_in = sampled["step"], sampled["one_in"]
    recorded = sum(is_recorded(step, one_in) for step in range(begins, begins + sampled["steps"]))
    step_ns = (sampled["cost_ns"] - (sampled["steps"] - recorded) * bare_ns) / max(recorded, 1)
    others = max(FIRST_STEPS - begins, 0)
    later = sum(is_recorded(step, one_in) for step in range(begins, FIRST_STEPS))
    taken_ns = first["cost_ns"] + later * step_ns + (others - later) * bare_ns
    return taken_ns / 1e6, (first["cost_ns"] + others * step_ns) / 1e6


def main():
    """Train and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        capture = train(Path(name), options.steps)
    steps = capture.tables["step"].to_pandas().groupby("step")["dur_ns"].median()
    print(f"median step {steps.median() / 1e6:.1f} ms, {COLLECTIVES} collectives in each")
    annotations = capture.rank_manifests[0]["annotations"]
    for one in annotations[RECORDING_KEY]:
        count, cost_ns = max(one["steps"], 1), one["cost_ns"]
        share = cost_ns / count / steps.median()
        print(
            f"from step {one['step']:4}, one window in {one['one_in']:2}: "
            f"{cost_ns / count / 1e6:.2f} ms a step, {share:.2%}, in all {cost_ns / 1e6:.0f} ms"
        )
    if len(annotations[RECORDING_KEY]) > 1:
        bare_ns = annotations["cost"]["bare_border_ns"] or 0
        taken_ms, all_ms = first_steps_ms(annotations[RECORDING_KEY], bare_ns)
        print(
            f"first {FIRST_STEPS} steps, without step 0: {taken_ms:.0f} ms; all of them recorded: {all_ms:.0f} ms"
        )
        print(f"a step that is not recorded: {bare_ns / 1e6:.2f} ms")


if __name__ == "__main__":
    main()
