"""Kinds of holders: what kept a piece of memory alive, as far as advice and figures tell them apart."""

from __future__ import annotations

from enum import Enum, unique


@unique
class HolderKind(Enum):
    """The kind of a holder; the values of the column `holder_kind`."""

    # found by following references; see `paths.py`
    LOCAL = "local"
    ARGUMENT = "argument"
    GLOBAL = "global"
    ATTRIBUTE = "attribute"
    CLOSURE_CELL = "closure cell"
    DEFAULT_ARGUMENT = "default argument"
    GENERATOR = "generator"
    EXCEPTION = "exception"
    CACHE = "cache"
    HOOK = "hook"
    AUTOGRAD_CTX = "autograd ctx"
    EVALUATION_STACK = "evaluation stack"
    GRAPH = "graph"  # a variable whose autograd graph keeps a saved tensor

    # known by the role of the memory
    PARAMETER = "module parameter"
    BUFFER = "module buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    UNSHARDED_PARAMETER = "unsharded parameter"
    COMMUNICATION = "communication"
    AUTOCAST_CACHE = "autocast cache"
    AUTOGRAD_NODE = "autograd node"
    CHECKPOINT = "checkpoint"  # activation checkpointing: the input of a region, or recomputed tensors
    OPTIMIZER = "optimizer"
    KERNEL = "kernel"
    RUNNING_OP = "running op"

    # no reference was found
    CPP_ONLY = "C++ only"
    OPTIMIZER_STEP = (
        "optimizer step"  # variables, an evaluation stack or C++, within the step: which is not known
    )
    NOT_SEEN = "not seen"
    NOT_LOOKED_FOR = "not looked for"
