"""Programs whose memory is data: datasets, batches, buffers, and tensors that other threads make and drop."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from truth_facts import GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, of_module, pattern, var

import memwatch

WIDTH = 59


def one_layer(nbytes, mark, module="net|Linear"):
    """Facts about the output of a layer whose square is the loss, and about the output's gradient."""
    return (
        Fact(nbytes, "activation", mark, SAVED, module, "addmm"),
        Fact(nbytes, "temporary", mark, f"{GRADIENT}|{UNNAMED}", op="pow|mul|div|expand"),
    )


DATA = None


@pattern(
    Fact(f32(4001, WIDTH), "held", "global dataset", of_module("DATA")),
    Fact(f32(97, WIDTH), "input", "global batch", f"{SAVED}|{var('batch')}"),
    *one_layer(f32(97, 211), "global train"),
)
def global_dataset():
    global DATA  # noqa: PLW0603
    net = nn.Linear(WIDTH, 211)
    with memwatch.profile() as prof:
        DATA = torch.randn(4001, WIDTH)  # peak: global dataset
        for step in range(3):
            batch = DATA[torch.arange(97) + step]  # peak: global batch
            net(batch).pow(2).mean().backward()  # peak: global train
            net.zero_grad()
            prof.step()
    DATA = None
    return Ran(prof, {"net": net})


class Trainer:
    def __init__(self, net):
        self.net, self.dataset = net, None

    def prepare(self):
        self.dataset = [torch.randn(301, WIDTH) for _ in range(6)]  # peak: attribute dataset

    def train(self):
        for batch in self.dataset:
            self.net(batch).pow(2).mean().backward()  # peak: attribute train
            self.net.zero_grad()


@pattern(
    Fact(
        f32(301, WIDTH),
        "held",
        "attribute dataset",
        f"{var('self.dataset')}|{var('trainer.dataset')}|{SAVED}|{var('batch')}",
    ),
    *one_layer(f32(301, 107), "attribute train", "self.net|trainer.net|net|Linear"),
)
def dataset_in_an_attribute():
    trainer = Trainer(nn.Linear(WIDTH, 107))
    with memwatch.profile() as prof:
        trainer.prepare()
        trainer.train()
    return Ran(prof, {"net": trainer.net})


@pattern(
    Fact(f32(23, WIDTH), "held", "observation", f"{var('replay')}|{var('state')}"),
    Fact(f32(23 * 32, WIDTH), "input", "replayed", f"{SAVED}|{var('states')}"),
    *one_layer(f32(23 * 32, 71), "learn"),
)
def replay_buffer():
    net, replay = nn.Linear(WIDTH, 71), deque(maxlen=64)
    with memwatch.profile() as prof:
        for step in range(100):
            state = torch.randn(23, WIDTH)  # peak: observation
            replay.append((state, step))
            if step % 32 == 31:
                states = torch.cat([state for state, _ in list(replay)[-32:]])  # peak: replayed
                net(states).pow(2).mean().backward()  # peak: learn
                net.zero_grad()
                del states
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(401, WIDTH), "input", "prefetched", f"{var('batches')}|{var('batch')}|{SAVED}"),
    *one_layer(f32(401, 31), "prefetch train"),
)
def batches_prefetched_in_a_list():
    net = nn.Linear(WIDTH, 31)
    with memwatch.profile() as prof:
        for _ in range(2):
            batches = [torch.randn(401, WIDTH) for _ in range(5)]  # peak: prefetched
            while batches:
                batch = batches.pop()
                net(batch).pow(2).mean().backward()  # peak: prefetch train
                net.zero_grad()
                del batch
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(211, WIDTH), "held", "kept batches", f"{var('batches')}|{var('batch')}|{SAVED}"),
    *one_layer(f32(211, 37), "kept train"),
)
def batches_that_stay_in_a_list():
    net = nn.Linear(WIDTH, 37)
    with memwatch.profile() as prof:
        batches = [torch.randn(211, WIDTH) for _ in range(4)]  # peak: kept batches
        for batch in batches:
            net(batch).pow(2).mean().backward()  # peak: kept train
            net.zero_grad()
    return Ran(prof, {"net": net})


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((3, 29, 29), float(index))  # peak: image


@pattern(
    Fact(f32(3, 29, 29), "temporary", "image", f"{UNNAMED}|{var('data')}|{var('batch')}"),
    Fact(f32(8, 3, 29, 29), "input", "collate", f"{var('images')}|{SAVED}"),
    Fact(f32(8, 6, 27, 27), "activation", "convolve", f"{SAVED}|{var('y')}", "net|Conv2d", "convolution"),
    Fact(f32(8, 6, 27, 27), "temporary", "convolved loss", f"{GRADIENT}|{UNNAMED}", op="pow|mul|div|expand"),
)
def data_loader_collates():
    net = nn.Conv2d(3, 6, 3)
    loader = torch.utils.data.DataLoader(Images(), batch_size=8)
    with memwatch.profile() as prof:
        for images in loader:  # peak: collate
            y = net(images)  # peak: convolve
            y.pow(2).mean().backward()  # peak: convolved loss
            net.zero_grad()
            del y
    return Ran(prof, {"net": net})


@pattern(
    Fact(
        f32(1511, WIDTH),
        "held|input|unknown|temporary",
        "|normalised",
        f"{var('pixels')}|{var('array')}|{UNNAMED}",
    ),
    Fact(f32(1511, 41), "temporary", "projected", f"{var('projected')}|{RESULT}", "net|Linear"),
    Fact(f32(1511, 41), "temporary", "centred", f"{var('projected')}|{RESULT}|{UNNAMED}"),
)
def memory_shared_with_numpy():
    net = nn.Linear(WIDTH, 41)
    array = np.ones((1511, WIDTH), dtype=np.float32)
    with torch.no_grad(), memwatch.profile() as prof:
        pixels = torch.from_numpy(array)
        pixels.div_(255)
        projected = net(pixels)  # peak: projected
        projected = projected - projected.mean(0)  # peak: centred
    return Ran(prof, {"net": net})


CHUNK = 50021


@pattern(Fact(f32(CHUNK), "held|temporary", "for the worker", f"{var('chunks')}|{UNNAMED}|{RESULT}|`chunks`"))
def worker_clears_a_list():
    with memwatch.profile() as prof:
        for _ in range(3):
            chunks = [torch.empty(CHUNK) for _ in range(5)]  # peak: for the worker
            worker = threading.Thread(target=chunks.clear)
            worker.start()
            worker.join()
    return Ran(prof, increase_bytes=5 * f32(CHUNK))


@pattern(Fact(f32(CHUNK), "held|temporary", "queued", f"queue|{var('item')}|{RESULT}|{UNNAMED}"))
def consumer_drops_each():
    items, taken = queue.Queue(1), threading.Semaphore(0)

    def consume():
        while (item := items.get()) is not None:
            del item
            taken.release()

    worker = threading.Thread(target=consume)
    worker.start()
    with memwatch.profile() as prof:
        for _ in range(6):
            items.put(torch.empty(CHUNK))  # peak: queued
            taken.acquire()
    items.put(None)
    worker.join()
    return Ran(prof, increase_bytes=f32(CHUNK))


@pattern(
    Fact(f32(CHUNK), "held|temporary", "weights", f"{var('weights')}"),
    Fact(
        f32(CHUNK), "held|temporary", "checkpoint copy", f"{UNNAMED}|{RESULT}|{var('copy')}|thread|work|job"
    ),
)
def background_checkpoint_writer():
    pool = ThreadPoolExecutor(1)
    with memwatch.profile() as prof:
        weights = torch.zeros(CHUNK)  # peak: weights
        for _ in range(4):
            copy = weights.clone()  # peak: checkpoint copy
            job = pool.submit(lambda tensor: tensor.sum(), copy)
            del copy
            job.result()
            del job
            pool.submit(int).result()  # the worker has dropped the job before
    pool.shutdown()
    return Ran(prof, increase_bytes=2 * f32(CHUNK) + f32(1))  # with the sum, while the worker has its copy


class Shared:
    result = None


@pattern(Fact(f32(CHUNK), "held|temporary", "shared", f"{var('shared.result')}|{RESULT}"))
def attribute_deleted_elsewhere():
    shared = Shared()

    def drop():
        del shared.result

    with memwatch.profile() as prof:
        for _ in range(5):
            shared.result = torch.empty(CHUNK)  # peak: shared
            worker = threading.Thread(target=drop)
            worker.start()
            worker.join()
    return Ran(prof, increase_bytes=f32(CHUNK))


@pattern(
    Fact(
        f32(1201, WIDTH),
        "held|input|temporary|unknown",
        "thread batch|",
        f"{var('batch')}|{var('ready')}|{SAVED}|queue|thread|no running call",
    ),
    *one_layer(f32(1201, 37), "thread train"),
)
def thread_prefetches():
    net, ready = nn.Linear(WIDTH, 37), queue.Queue(1)

    def load():
        for _ in range(4):
            ready.put(torch.randn(1201, WIDTH))  # peak: thread batch
        ready.put(None)

    with memwatch.profile() as prof:
        loader = threading.Thread(target=load)
        loader.start()
        while (batch := ready.get()) is not None:
            net(batch).pow(2).mean().backward()  # peak: thread train
            net.zero_grad()
        loader.join()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(331, WIDTH), "held|input", "", f"{var('ready.queue')}|{var('item')}|{var('batch')}|{SAVED}"),
    *one_layer(f32(331, 43), "queue train"),
)
def thread_fills_a_queue():
    net, ready, wanted = nn.Linear(WIDTH, 43), queue.Queue(), threading.Semaphore(0)

    def load():
        for _ in range(3):
            wanted.acquire()
            for _ in range(5):
                ready.put(torch.randn(331, WIDTH))
            ready.put(None)

    with memwatch.profile() as prof:
        loader = threading.Thread(target=load)
        loader.start()
        for _ in range(3):
            wanted.release()
            while ready.qsize() < 6:  # all batches of a pass wait before the first is used
                time.sleep(0.001)
            while (batch := ready.get()) is not None:
                net(batch).pow(2).mean().backward()  # peak: queue train
                net.zero_grad()
        loader.join()
    return Ran(prof, {"net": net})
