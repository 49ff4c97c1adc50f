"""Leaks through what shares a tensor's memory, and through objects of Python's that keep more than they show."""

from __future__ import annotations

import ctypes
import inspect
import pickle
import sys
import traceback
import types

import numpy as np
import torch
from leak_program import collect

BUFFERS, CALLED_FROM_C, ERRORS, FRAMES, FUNCTIONS, ITERATORS, POINTERS, RESULTS, SETTINGS, VALUES, VIEWS = (
    [] for _ in range(11)
)


def tensor():
    return torch.randn(32, 8)


def leak_memory_view():
    VIEWS.append(memoryview(tensor().numpy()))


def clean_memory_view():
    VIEWS.append(memoryview(tensor().numpy()).tobytes())


def leak_pickled_out_of_band():
    pickle.dumps(tensor().numpy(), protocol=5, buffer_callback=BUFFERS.append)


def clean_pickled_out_of_band():
    BUFFERS.append(pickle.dumps(tensor().numpy(), protocol=5))


def leak_ctypes_array():
    POINTERS.append((ctypes.c_float * 256).from_buffer(tensor().numpy()))


def clean_ctypes_array():
    POINTERS.append((ctypes.c_float * 256).from_buffer_copy(tensor().numpy()))


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int)


def leak_ctypes_callback():
    weights = tensor()
    CALLED_FROM_C.append(CALLBACK(lambda: len(weights)))


def clean_ctypes_callback():
    size = len(tensor())
    CALLED_FROM_C.append(CALLBACK(lambda: size))


def leak_array_function():
    weights = tensor()
    FUNCTIONS.append(np.frompyfunc(lambda at: weights[at], 1, 1))


def clean_array_function():
    size = len(tensor())
    FUNCTIONS.append(np.frompyfunc(lambda at: size, 1, 1))


def leak_frozen_settings():
    SETTINGS.append(types.MappingProxyType({"weights": tensor()}))


def clean_frozen_settings():
    SETTINGS.append(types.MappingProxyType({"weights": tensor().shape}))


def leak_view_of_values():
    VALUES.append({"weights": tensor()}.values())


def clean_view_of_values():
    VALUES.append({"weights": tensor()}.keys() - {"weights"})


def leak_iterator_that_waits():
    batches = map(torch.neg, [tensor(), tensor()])
    next(batches)
    ITERATORS.append(batches)


def clean_iterator_that_waits():
    batches = map(torch.neg, [tensor(), tensor()])
    ITERATORS.append(batches)
    assert len(list(batches)) == 2


def fails():
    activations = tensor()
    raise ValueError(tuple(activations.shape))


def leak_exception_info():
    try:
        fails()
    except ValueError:
        ERRORS.append(sys.exc_info())


def clean_exception_info():
    try:
        fails()
    except ValueError:
        ERRORS.append(sys.exc_info()[0])


def averaged():
    yield
    return tensor()


def leak_value_of_a_generator():
    steps = averaged()
    next(steps)
    try:
        next(steps)
    except StopIteration as end:
        RESULTS.append(end.with_traceback(None))


def clean_value_of_a_generator():
    steps = averaged()
    next(steps)
    try:
        next(steps)
    except StopIteration as end:
        RESULTS.append(tuple(end.value.shape))


def leak_kept_frame():
    activations = tensor()
    FRAMES.append((inspect.currentframe(), activations.shape))


def clean_kept_frame():
    activations = tensor()
    FRAMES.append((traceback.extract_stack(limit=2), activations.shape))


PROGRAMS = collect(
    globals(),
    [
        ("memory_view", "retained", ("global `VIEWS`", "memoryview")),
        ("pickled_out_of_band", "retained", ("global `BUFFERS`", "PickleBuffer")),
        ("ctypes_array", "retained", ("global `POINTERS`", "c_float_Array")),
        ("ctypes_callback", "retained", ("global `CALLED_FROM_C`", "closure cell `weights`")),
        ("array_function", "retained", ("global `FUNCTIONS`", "closure cell `weights`")),
        ("frozen_settings", "retained", ("global `SETTINGS`", "'weights'")),
        ("view_of_values", "retained", ("global `VALUES`", "'weights'")),
        ("iterator_that_waits", "retained", ("global `ITERATORS`", "list_iterator")),
        ("exception_info", "retained", ("global `ERRORS`", "local `activations` of fails")),
        ("value_of_a_generator", "retained", ("global `RESULTS`", "StopIteration")),
        ("kept_frame", "retained", ("global `FRAMES`", "local `activations` of leak_kept_frame")),
    ],
)
