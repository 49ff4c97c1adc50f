"""Threads, processes, copies, files, async code: the program around the tensors."""

from __future__ import annotations

import asyncio
import copy
import io
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from compat_harness import unnoticed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def _step(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = net(x).pow(2).mean()
    loss.backward()
    return loss.detach()


@unnoticed
def test_training_in_a_thread():
    net, found = nn.Linear(4, 4), []
    thread = threading.Thread(target=lambda: found.append(_step(net, torch.ones(2, 4))))
    thread.start()
    thread.join()
    return net, found


@unnoticed
def test_many_threads_at_once():
    nets = [nn.Linear(4, 4) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        losses = list(pool.map(lambda net: _step(net, torch.ones(2, 4)), nets))
    return nets, losses, _step(nets[0], torch.ones(2, 4))


@unnoticed(deaths=False)
def test_backward_in_another_thread():
    """Deaths are not compared: torch's profiler does not see frees of another thread."""
    net = nn.Linear(4, 4)
    loss = net(torch.ones(2, 4)).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    return net


@unnoticed
def test_data_loader_workers():
    data = TensorDataset(torch.arange(8.0).reshape(8, 1))
    loader = DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="fork")
    return [batch[0].clone() for batch in loader]


@unnoticed
def test_data_loader_in_the_process():
    data = TensorDataset(torch.arange(8.0).reshape(8, 1), torch.arange(8))
    return list(DataLoader(data, batch_size=3, shuffle=True))


@unnoticed
def test_fork():
    """The child computes and reports; its exit is its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        value = (torch.ones(4) * 3).sum().item()
        os.write(writer, str(value).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    answer = os.read(reader, 100)
    os.close(reader)
    return status, answer, torch.ones(2) * 2


@unnoticed
def test_copies_and_pickles():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    _step(net, torch.randn(3, 4))
    twin = copy.deepcopy(net)
    again = pickle.loads(pickle.dumps(net))
    shallow = copy.copy(net[0])
    _step(twin, torch.randn(3, 4))
    return net, twin, again, shallow is net[0]


@unnoticed
def test_saving_and_loading():
    net = nn.Linear(4, 4)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "x": torch.ones(3)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    net.load_state_dict(loaded["net"])
    return net, loaded


@unnoticed
def test_asyncio():
    net = nn.Linear(4, 4)

    async def one(x):
        await asyncio.sleep(0)
        loss = net(x).sum()
        await asyncio.sleep(0)
        return loss.detach()

    async def main():
        return await asyncio.gather(*(one(torch.full((2, 4), float(i))) for i in range(3)))

    return asyncio.run(main()), net


@unnoticed
def test_async_generators():
    async def batches():
        for i in range(3):
            await asyncio.sleep(0)
            yield torch.full((2,), float(i)) * 2

    async def main():
        return [batch + 1 async for batch in batches()]

    return asyncio.run(main())


@unnoticed
def test_generators_between_forward_and_backward():
    def training(net):
        for i in range(3):
            loss = net(torch.full((2, 4), float(i))).sum()
            yield loss.detach()
            loss.backward()

    net = nn.Linear(4, 4)
    return list(training(net)), net


@unnoticed
def test_environment_of_exceptions():
    """Exceptions with tensors in their frames keep them no longer than plainly."""
    caught = []
    for bad in (
        lambda: torch.ones(2) @ torch.ones(3),
        lambda: nn.Linear(2, 2)(torch.ones(3)),
        lambda: {}["no"],
    ):
        try:
            bad()
        except Exception as error:
            caught.append((type(error).__name__, str(error)))
    return caught


@unnoticed
def test_recursion_error():
    """The error is the same. Its text names the call that hit the limit, so the texts are not compared."""

    def deeper(x):
        return deeper(x + 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        deeper(torch.zeros(()))
    except RecursionError as error:
        return type(error)
    finally:
        sys.setrecursionlimit(limit)
