"""A job of two ranks of which the second never comes to the making of the process group."""

import os
import time

import torch.distributed as dist


def read_for_ever():
    """Stand still."""
    time.sleep(600)


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        read_for_ever()
    dist.init_process_group("gloo")
