"""Leaks through arrays, tables, modules and scopes that hold results."""

from __future__ import annotations

import collections
import sys
import types
import weakref

import numpy as np
import torch
from leak_program import collect
from torch import nn
from torch.utils.dlpack import to_dlpack

NET = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
KEPT = []


def tensor():
    return torch.randn(32, 8)


ARRAYS = {"pred": []}


def leak_numpy_view():
    ARRAYS["pred"].append((1, NET(torch.randn(4, 16)).detach().numpy()))


def clean_numpy_view():
    ARRAYS["pred"].append((1, NET(torch.randn(4, 16)).detach().numpy().copy()))


def leak_dlpack_capsule():
    KEPT.append(to_dlpack(tensor()))


def clean_dlpack_capsule():
    KEPT.append(tuple(tensor().shape))


def leak_array_from_dlpack():
    ARRAYS["pred"].append((1, np.from_dlpack(tensor())))


def clean_array_from_dlpack():
    ARRAYS["pred"].append((1, np.from_dlpack(tensor()).copy()))


def leak_part_through_dlpack():
    KEPT.append(torch.from_dlpack(tensor()[0]))


def clean_part_through_dlpack():
    KEPT.append(tensor()[0].tolist())


def leak_object_array():
    values = np.empty(2, dtype=object)
    values[1] = tensor()
    KEPT.append(values)


def clean_object_array():
    values = np.empty(2, dtype=object)
    values[1] = tensor().tolist()
    KEPT.append(values)


def leak_data_frame():
    import pandas as pd

    KEPT.append(pd.DataFrame({"loss": [NET(torch.randn(4, 16)).mean()]}))


def clean_data_frame():
    import pandas as pd

    KEPT.append(pd.DataFrame({"loss": [NET(torch.randn(4, 16)).mean().item()]}))


class Samples:
    pass


def leak_cycle_through_numpy():
    samples, items = Samples(), np.empty(2, dtype=object)
    items[:] = [samples, tensor()]
    samples.items = items


def clean_cycle_through_numpy():
    samples = Samples()
    samples.items = [weakref.ref(samples), tensor()]


def leak_module_per_call():
    module = types.ModuleType(f"memwatch_test_plugin_{len(sys.modules)}")
    module.TABLE = tensor()
    sys.modules[module.__name__] = module


def clean_module_per_call():
    module = types.ModuleType("memwatch_test_plugin")
    module.TABLE = tensor()
    sys.modules[module.__name__] = module


SCOPES = {"now": collections.ChainMap()}


def leak_scopes():
    SCOPES["now"] = SCOPES["now"].new_child({"x": tensor()})


def clean_scopes():
    SCOPES["now"] = SCOPES["now"].new_child({"x": tensor()}).parents


class Server:
    def __init__(self):
        self.last, self.all = None, []

    def handle(self, out):
        self.last = out
        self.all.append(out)


SERVER = Server()


def leak_last_and_all():
    SERVER.handle(tensor())


def clean_last_and_all():
    SERVER.last = tensor()


FIFO = collections.deque([torch.randn(4, 8) for _ in range(3)])


def leak_beside_a_queue_that_drains():
    if FIFO:
        FIFO.popleft()
    KEPT.append(tensor())


def clean_beside_a_queue_that_drains():
    FIFO.append(torch.randn(4, 8))
    FIFO.popleft()


PROGRAMS = collect(
    globals(),
    [
        ("last_and_all", "retained", ("global `SERVER`", "attribute .all of Server")),
        ("beside_a_queue_that_drains", "retained", ("global `KEPT`",)),
        ("numpy_view", "retained", ("global `ARRAYS`", "'pred'", "numpy .base of ndarray [4, 1] float32")),
        ("dlpack_capsule", "retained", ("global `KEPT`", "memory that DLPack capsule shares")),
        (
            "array_from_dlpack",
            "retained",
            ("global `ARRAYS`", "'pred'", "numpy .base of ndarray [32, 8] float32"),
        ),
        ("part_through_dlpack", "retained", ("global `KEPT`",)),
        ("object_array", "retained", ("global `KEPT`", "item [1] of ndarray [2] object")),
        ("data_frame", "retained", ("global `KEPT`", "DataFrame", "of ndarray")),
        ("cycle_through_numpy", "uncollectable", ("attribute .items of Samples", "ndarray")),
        ("module_per_call", "retained", ("global `TABLE` of module memwatch_test_plugin",)),
        ("scopes", "retained", ("global `SCOPES`", "attribute .maps of ChainMap", "'x'")),
    ],
)
