"""Data-parallel training and mixed precision, each keeping more than it must, and the same mended by one argument."""

from __future__ import annotations

import torch
import torch.distributed as dist
from drag_frames import WIDE
from drag_training import sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def network():
    return nn.Sequential(*[nn.Linear(WIDE, WIDE, bias=False) for _ in range(4)])


def data_parallel(**options):
    def program():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        # The backend's threads may still be releasing buckets, which needs Python's lock. If Python drops the last
        # reference to the backend, it gives up the lock while it waits for them. If the model did so, it would keep
        # the lock, and wait for ever.
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        try:
            # without the broadcast, whose copy gloo's thread frees at any time
            model = DistributedDataParallel(network(), init_sync=False, **options)
            model(torch.ones(4, WIDE)).sum().backward()
            sgd(model).step()
            del model
        finally:
            dist.destroy_process_group()
            del backend

    return program


def inference(**options):
    def program():
        model = network()
        with torch.autocast("cpu", torch.bfloat16, **options), torch.no_grad():
            model(torch.ones(4, WIDE))

    return program


def backward_in_the_region():
    model = network()
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(4, WIDE)).sum().backward()
    sgd(model).step()


def backward_after_the_region():
    model = network()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(4, WIDE)).sum()
    loss.backward()
    sgd(model).step()


CASES = {
    "gradients beside buckets": (
        data_parallel(),
        ["DistributedDataParallel", "drag_parallel.py", "gradient_as_bucket_view=True"],
        data_parallel(gradient_as_bucket_view=True),
    ),
    "cache of autocast": (
        inference(),
        ["autocast's cache", "cache_enabled=False"],
        inference(cache_enabled=False),
    ),
    "backward in the region of autocast": (
        backward_in_the_region,
        ["autocast's cache", "before backward()"],
        backward_after_the_region,
    ),
}
