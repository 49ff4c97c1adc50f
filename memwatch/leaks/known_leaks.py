"""Known leaks: references of libraries that keep tensors, each with the public thread that describes it.

A leak of the program under test may be one of these. Then its text has the library and the link, so that nobody
searches their own code. An entry is here only if a program in `tests/known_leaks` shows it with the real library, and
the same program with the remedy is silent.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.kinds.leaks import LeakKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.kinds.edges import Edge


class Reference(NamedTuple):
    """One reference that a path must have. An empty field matches everything.

    Attributes:
        kinds: the kinds of reference that fit.
        names: identifiers of the attribute or variable.
        owners: names of the owner's class.
        owner_kind: the kind of owner.
        file: a part of the path of the source file that makes the reference, with slashes.
    """

    kinds: EdgeKind | tuple[EdgeKind, ...]
    names: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    owner_kind: VertexKind | None = None
    file: str = ""

    def matches(self, edge: Edge) -> bool:
        """Return True for an edge that agrees with all fields."""
        owner = edge.owner
        return (
            edge.kind in (self.kinds if isinstance(self.kinds, tuple) else (self.kinds,))
            and (not self.names or edge.name in self.names)
            and (not self.owners or (owner is not None and owner.name in self.owners))
            and (self.owner_kind is None or (owner is not None and owner.kind is self.owner_kind))
            and self.file in (edge.file or "").replace("\\", "/")
        )


@dataclass(frozen=True)
class KnownLeak:
    """One leak of a library.

    Attributes:
        library: the name of the distribution.
        what: the objects that the library keeps, and until when.
        link: the public issue.
        remedy: the change that ends it; "" if the advice for the reference already says so.
        kinds: the kinds of leaks as which it shows.
        references: found on the path in this order, others may lie between them.
        fixed_in: the first version without it; "" while there is none.
    """

    library: str
    what: str
    link: str
    kinds: tuple[LeakKind, ...]
    references: tuple[Reference, ...]
    remedy: str = ""
    fixed_in: str = ""

    def shows_in(self, kind: LeakKind, edges: Sequence[Edge]) -> bool:
        """Return True if a leak of some kind has the references on its path or in its cycle."""
        # a cycle may be reported from any of its references on
        left = iter(edges if kind.is_reached else [*edges, *edges])
        return kind in self.kinds and all(any(map(each.matches, left)) for each in self.references)

    def affects(self, version: str) -> bool:
        """Return True if a version of the library has the leak."""
        return not self.fixed_in or _numbers(version) < _numbers(self.fixed_in)


KNOWN_LEAKS: Final = (
    KnownLeak(
        library="accelerate",
        what="an Accelerator keeps every model, optimizer, scheduler and loader that it prepared",
        link="https://github.com/huggingface/accelerate/issues/84",
        remedy="call accelerator.free_memory() before you prepare the next model",
        kinds=(LeakKind.RETAINED,),
        references=(
            Reference(
                EdgeKind.ATTRIBUTE, ("_models", "_optimizers", "_schedulers", "_dataloaders"), ("Accelerator",),
                file="/accelerate/accelerator.py",
            ),
        ),
    ),
    KnownLeak(
        library="torchmetrics",
        what="a metric with list states keeps the predictions and targets of every update until it is reset",
        link="https://github.com/Lightning-AI/torchmetrics/issues/3294",
        remedy="call metric.reset() after each epoch, or pass `thresholds=` to a curve metric",
        kinds=(LeakKind.RETAINED,),
        references=(Reference(EdgeKind.ATTRIBUTE, file="/torchmetrics/"), Reference(EdgeKind.ITEM)),
    ),
    KnownLeak(
        library="transformers",
        what="compile_compatible_method_lru_cache on a method keeps the object of every call as a key of its cache",
        link="https://github.com/huggingface/transformers/issues/45412",
        remedy="upgrade transformers, whose models cache functions instead, or cache a function without `self`",
        kinds=(LeakKind.RETAINED,),
        references=(
            Reference(EdgeKind.CLOSURE_CELL, ("func_with_cache",), file="/transformers/pytorch_utils.py"),
            Reference(EdgeKind.CACHE_ARGUMENT),
        ),
    ),
    KnownLeak(
        library="lightning",
        what="a Trainer and its loops refer to each other, and keep the model and the loaders of the last fit",
        link="https://github.com/Lightning-AI/pytorch-lightning/issues/18289",
        remedy="drop the Trainer and call gc.collect() before the next fit; `del trainer` alone frees nothing",
        kinds=(LeakKind.CYCLE,),
        references=(
            Reference(
                EdgeKind.ATTRIBUTE, ("trainer", "_trainer"), file="/lightning/pytorch/"
            ),
        ),
    ),
    KnownLeak(
        library="torch",
        what="backward(create_graph=True) makes a cycle of each parameter and its gradient",
        link="https://github.com/pytorch/pytorch/issues/7343",
        kinds=(LeakKind.UNCOLLECTABLE, LeakKind.CYCLE),
        references=(
            Reference(EdgeKind.GRAD), Reference(EdgeKind.GRAD_FN),
            Reference(EdgeKind.VARIABLE, owners=("AccumulateGrad",)),
        ),
    ),
    KnownLeak(
        library="torch",
        what="an output that a custom Function stores as an attribute of ctx keeps the graph that keeps ctx",
        link="https://github.com/pytorch/pytorch/issues/25340",
        kinds=(LeakKind.UNCOLLECTABLE, LeakKind.CYCLE),
        references=(
            Reference(EdgeKind.ATTRIBUTE, owner_kind=VertexKind.CTX), Reference(EdgeKind.GRAD_FN),
        ),
    ),
    KnownLeak(
        library="torch",
        what="LambdaLR keeps its function, and the function keeps the object that has the scheduler",
        link="https://github.com/pytorch/pytorch/issues/47589",
        remedy=(
            "give LambdaLR a function that uses values instead of `self`: no bound method, and no lambda that "
            "captures `self`"
        ),
        kinds=(LeakKind.CYCLE,),
        references=(
            Reference(EdgeKind.ATTRIBUTE, ("lr_lambdas",), file="/torch/optim/lr_scheduler.py"),
            Reference((EdgeKind.CLOSURE_CELL, EdgeKind.BOUND_SELF)),
        ),
    ),
)  # fmt: skip


def known_leak(kind: LeakKind, edges: Sequence[Edge]) -> KnownLeak | None:
    """Return the library's leak that a path or a cycle shows; None if it is the program's own.

    Args:
        kind: the kind of the leak.
        edges: its typed references, the root's first.
    """
    for known in KNOWN_LEAKS:
        if known.shows_in(kind, edges) and known.affects(_version(known.library)):
            return known
    return None


@functools.cache
def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""  # of a source tree: no version is known to have the fix


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())
