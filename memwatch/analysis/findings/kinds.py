"""The kinds of findings."""

from __future__ import annotations

from enum import Enum

from memwatch.words import findings as words


class FindingKind(str, Enum):
    """Why bytes at the peak need not be there; equal to its name as text, such as ``"drag"``."""

    DRAG = "drag"  # held after the last use
    ITERATION = "iteration"  # the same, from one pass of a loop into the next
    STALE = "stale"  # an object keeps it from one iteration into the next, and nothing reads it there
    LAG = "lag"  # made long before the first use
    VOID = "void"  # never used
    GRADIENT = "gradient"  # alive in the next forward
    GRAPH = "graph"  # saved for a backward that never runs
    RETAINED = "retained"  # saved for a backward that has run
    OPTIMIZER = "optimizer"  # temporaries of a foreach step
    FUSED = "fused"  # temporaries that an optimizer's step makes for each parameter
    SET_TO_NONE = "set_to_none"  # gradients filled with zeros instead of freed
    OUTPUT = "output"  # a model's result, kept through a backward that does not need it
    WORKSPACE = "workspace"  # of one op
    RECOMPUTE = "recompute"  # of a large checkpointed region, all at once
    TWICE = "twice"  # a saved tensor and a converted copy of it
    BUCKETS = "buckets"  # gradients that DDP keeps beside its buckets
    AUTOCAST = "autocast"  # converted weights that autocast's cache keeps
    GROWTH = "growth"  # every step leaves more behind
    FLOAT32 = "float32"  # float32 copies that autograd saves

    __str__ = str.__str__
    __repr__ = str.__repr__

    def __format__(self, format_spec: str) -> str:
        """Format the text, as every version of Python then does for `format` and `print` alike."""
        return format(self.value, format_spec)

    @property
    def headline(self) -> str:
        """The holder's fault, with a place for the bytes: "keeps {nbytes} that no op ever uses"."""
        return words.HEADLINES[self]

    @property
    def advice(self) -> str:
        """The change for every finding of this kind; "" if it depends on the holder alone."""
        return words.ADVICE.get(self, "")
