"""Which storages a program makes outlive it, and a collection: by weak references alone."""

from __future__ import annotations

import gc
import weakref

import torch
from torch.utils._pytree import tree_leaves

from memwatch._torch.modes import UncompiledMode


class Births(UncompiledMode):
    """Keeps a weak reference to every storage that an operator returns, and does not import torch's compiler."""

    def __init__(self):
        super().__init__()
        self.refs = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                self.refs.append(weakref.ref(value.untyped_storage()))
        return out

    def alive(self):
        return len({id(ref()) for ref in self.refs if ref() is not None})


def survivors(program):
    """Run a program with gc off; count the storages that outlive it, before and after a collection."""
    program()  # first-use state of torch
    gc.collect()
    gc.disable()
    try:
        with Births() as births:
            program()
        left = births.alive()
    finally:
        gc.enable()
    gc.collect()
    return left, births.alive()
