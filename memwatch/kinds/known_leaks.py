"""Known leaks: references of libraries that keep tensors, each with the public thread that describes it.

A leak of the program under test may be one of these. Then its text has the library and the link, so that nobody
searches their own code. An entry is here only if a program in `tests/known_leaks` shows it, and the same program with
the remedy is silent. The program uses the real library where the tests have it. The leak of another library is shown
with a small module that keeps the tensors in the same way, by the names of the version in `seen_in`.
"""

from __future__ import annotations

import fnmatch
import functools
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.kinds.edges import Edge, EdgeKind, VertexKind
from memwatch.kinds.leaks import LeakKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.kinds.edges import Vertex
    from memwatch.kinds.findings import FindingKind


class Reference(NamedTuple):
    """One reference that a path must have. An empty field matches everything.

    Attributes:
        kinds: the kinds of reference that fit.
        names: identifiers of the attribute or variable; a star stands for any characters.
        owners: names of the owner's class or of its base classes.
        owner_kind: the kind of owner.
        file: a part of the path of the source file that makes the reference, with slashes. For a reference without a
            line, such as that of a bound method to its object, it is the file of the function.
    """

    kinds: EdgeKind | tuple[EdgeKind, ...]
    names: tuple[str, ...] = ()
    owners: frozenset[str] = frozenset()
    owner_kind: VertexKind | None = None
    file: str = ""

    def matches(self, edge: Edge) -> bool:
        """Return True for an edge that agrees with all fields."""
        owner = edge.owner
        return (
            edge.kind in (self.kinds if isinstance(self.kinds, tuple) else (self.kinds,))
            and (not self.names or any(fnmatch.fnmatchcase(edge.name or "", name) for name in self.names))
            and (not self.owners or (owner is not None and not self.owners.isdisjoint(_names_of(owner))))
            and (self.owner_kind is None or (owner is not None and owner.kind is self.owner_kind))
            and self.file in _file_of(edge).replace("\\", "/")
        )


def _names_of(owner: Vertex) -> set[str]:
    return {owner.name, *(name for name, _ in owner.bases)}


def _file_of(edge: Edge) -> str:
    of_owner = edge.owner and (edge.owner.file or (edge.owner.inner and edge.owner.inner.file))
    return edge.file or of_owner or ""


@dataclass(frozen=True)
class KnownLeak:
    """One leak of a library.

    Attributes:
        library: the name of the distribution.
        what: the objects that the library keeps, and until when.
        link: the public issue.
        remedy: the change that ends it; "" if the advice for the reference already says so.
        kinds: the kinds of leaks as which it shows. A finding has the kind of a leak of the same name.
        references: found on the path in this order, others may lie between them.
        seen_in: a version that has it.
        fixed_in: the first version without it; "" while there is none.
    """

    library: str
    what: str
    link: str
    kinds: tuple[LeakKind, ...]
    references: tuple[Reference, ...]
    seen_in: str
    remedy: str = ""
    fixed_in: str = ""

    def shows_in(
        self, kind: LeakKind | FindingKind, edges: Sequence[Edge], grows_at: Edge | None = None
    ) -> bool:
        """Return True if a leak of some kind has the references on its path or in its cycle.

        A list of the program may keep many objects of the library, each with its own tensors. The list is to blame
        then. So the first reference must not lie behind the one that grows.
        """
        own_kind = next((each for each in self.kinds if each == kind), None)
        if own_kind is None:
            return False
        first, *others = self.references
        for at, edge in enumerate(edges):
            if first.matches(edge):
                # a cycle may be reported from any of its references on
                left = iter(edges[at + 1 :] if own_kind.is_reached else [*edges[at + 1 :], *edges[:at]])
                if all(any(map(each.matches, left)) for each in others):
                    return True
            if edge is grows_at and own_kind.is_reached:
                return False
        return False

    def affects(self, version: str) -> bool:
        """Return True if a version of the library has the leak."""
        return not self.fixed_in or _numbers(version) < _numbers(self.fixed_in)


KNOWN_LEAKS: Final = (
    KnownLeak(
        library="accelerate",
        what="an Accelerator keeps every model, optimizer, scheduler and loader that it prepared",
        link="https://github.com/huggingface/accelerate/issues/84",
        remedy="call accelerator.free_memory() before you prepare the next model",
        seen_in="1.15.0",
        kinds=(LeakKind.RETAINED,),
        references=(
            Reference(
                EdgeKind.ATTRIBUTE, ("_models", "_optimizers", "_schedulers", "_dataloaders"),
                frozenset({"Accelerator"}), file="/accelerate/accelerator.py",
            ),
        ),
    ),
    KnownLeak(
        library="accelerate",
        what="the state that all Accelerators share keeps each prepared loader whose loop ended early",
        link="https://github.com/huggingface/accelerate/pull/3391",
        remedy="upgrade accelerate to 1.4 or later, or read such a loader to its end",
        seen_in="1.3.0",
        fixed_in="1.4.0",
        kinds=(LeakKind.RETAINED,),
        references=(
            Reference(EdgeKind.CLASS_ATTRIBUTE, ("_shared_state",), file="/accelerate/state.py"),
            Reference(EdgeKind.VALUE, ("'dataloader_references'",)),
        ),
    ),
    KnownLeak(
        library="torchmetrics",
        what="a metric with list states keeps the predictions and targets of every update until it is reset",
        link="https://github.com/Lightning-AI/torchmetrics/issues/3294",
        remedy="call metric.reset() after each epoch, or pass `thresholds=` to a curve metric",
        seen_in="1.9.0",
        kinds=(LeakKind.RETAINED,),
        references=(
            Reference(EdgeKind.ATTRIBUTE, owners=frozenset({"Metric"}), file="/torchmetrics/"),
            Reference(EdgeKind.ITEM),
        ),
    ),
    KnownLeak(
        library="torchmetrics",
        what="a metric wraps its own methods, and so refers to itself",
        link="https://github.com/Lightning-AI/torchmetrics/issues/1949",
        remedy="make the metric once and call metric.reset(), instead of a new metric for each use",
        seen_in="1.9.0",
        kinds=(LeakKind.CYCLE,),
        references=(
            Reference(EdgeKind.ATTRIBUTE, ("update", "compute"), file="/torchmetrics/metric.py"),
            Reference(EdgeKind.BOUND_SELF),
        ),
    ),
    KnownLeak(
        library="transformers",
        what="compile_compatible_method_lru_cache on a method keeps the object of every call as a key of its cache",
        link="https://github.com/huggingface/transformers/issues/45412",
        remedy="upgrade transformers, whose models cache functions instead, or cache a function without `self`",
        seen_in="5.24.0",
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
        seen_in="2.6.6",
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
        seen_in="2.13.0",
        kinds=(LeakKind.UNCOLLECTABLE, LeakKind.CYCLE),
        references=(
            Reference(EdgeKind.GRAD), Reference(EdgeKind.GRAD_FN),
            Reference(EdgeKind.VARIABLE, owners=frozenset({"AccumulateGrad"})),
        ),
    ),
    KnownLeak(
        library="torch",
        what="a custom Function keeps a method on ctx whose object keeps the result",
        link="https://github.com/pytorch/pytorch/issues/52140",
        remedy="let the object keep `result.detach()`, or give ctx a function that does not refer to the object",
        seen_in="2.13.0",
        kinds=(LeakKind.UNCOLLECTABLE, LeakKind.CYCLE),
        references=(
            Reference(EdgeKind.ATTRIBUTE, owner_kind=VertexKind.CTX), Reference(EdgeKind.BOUND_SELF),
            Reference(EdgeKind.GRAD_FN),
        ),
    ),
    KnownLeak(
        library="torch",
        what="an output that a custom Function stores as an attribute of ctx keeps the graph that keeps ctx",
        link="https://github.com/pytorch/pytorch/issues/25340",
        seen_in="2.13.0",
        kinds=(LeakKind.UNCOLLECTABLE, LeakKind.CYCLE),
        references=(
            Reference(EdgeKind.ATTRIBUTE, owner_kind=VertexKind.CTX), Reference(EdgeKind.GRAD_FN),
        ),
    ),
    KnownLeak(
        library="torch",
        what="a custom Function that saves a view of its output keeps the output, whose graph keeps the view",
        link="https://github.com/pytorch/pytorch/issues/94990",
        seen_in="2.13.0",
        kinds=(LeakKind.UNCOLLECTABLE, LeakKind.CYCLE),
        references=(
            Reference(EdgeKind.SAVED, owner_kind=VertexKind.CTX), Reference(EdgeKind.BASE),
            Reference(EdgeKind.GRAD_FN),
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
        seen_in="2.13.0",
        kinds=(LeakKind.CYCLE,),
        references=(
            Reference(EdgeKind.ATTRIBUTE, ("lr_lambdas",), file="/torch/optim/lr_scheduler.py"),
            Reference((EdgeKind.CLOSURE_CELL, EdgeKind.BOUND_SELF)),
        ),
    ),
    KnownLeak(
        library="torchvision",
        what="an AnchorGenerator keeps the anchors of every image size",
        link="https://github.com/pytorch/vision/issues/1689",
        remedy="upgrade torchvision to 0.5 or later",
        seen_in="0.4.2",
        fixed_in="0.5.0",
        kinds=(LeakKind.RETAINED,),
        references=(
            Reference(
                EdgeKind.ATTRIBUTE, ("_cache",), frozenset({"AnchorGenerator"}), file="/torchvision/models/detection/"
            ),
        ),
    ),
    KnownLeak(
        library="opacus",
        what="a forward in training mode keeps the inputs of each layer until a backward, under no_grad too",
        link="https://github.com/meta-pytorch/opacus/issues/176",
        remedy="call model.eval() before you evaluate, or upgrade opacus to 0.14 or later",
        seen_in="0.13.0",
        fixed_in="0.14.0",
        kinds=(LeakKind.RETAINED,),
        references=(
            Reference(EdgeKind.ATTRIBUTE, ("activations",), file="/opacus/autograd_grad_sample.py"),
            Reference(EdgeKind.ITEM),
        ),
    ),
    KnownLeak(
        library="grad-cam",
        what="each GradCAM registers hooks of the model and never removes them",
        link="https://github.com/jacobgil/pytorch-grad-cam/issues/132",
        remedy="upgrade grad-cam to 1.3.5 or later and write `with GradCAM(...) as cam:`, or use one GradCAM again",
        seen_in="1.3.1",
        fixed_in="1.3.5",
        kinds=(LeakKind.RETAINED, LeakKind.HOOKS),
        references=(
            # the tables of hooks of a module; their names are private to torch, and only `_torch` spells those
            Reference(EdgeKind.ATTRIBUTE, ("*ward_hooks",)),
            Reference(
                (EdgeKind.BOUND_SELF, EdgeKind.VALUE), file="/pytorch_grad_cam/activations_and_gradients.py"
            ),
        ),
    ),
    KnownLeak(
        library="gpytorch",
        what="a prediction strategy keeps a tensor whose backward clears its cache, by a hook that keeps the strategy",
        link="https://github.com/cornellius-gp/gpytorch/issues/2631",
        remedy="upgrade gpytorch to 1.15.1 or later, or leave gpytorch.settings.detach_test_caches on",
        seen_in="1.15",
        fixed_in="1.15.1",
        kinds=(LeakKind.UNCOLLECTABLE, LeakKind.CYCLE),
        references=(
            Reference(EdgeKind.ATTRIBUTE, ("_memoize_cache",), file="/gpytorch/models/exact_prediction_strategies.py"),
            Reference(EdgeKind.NODE_HOOKS),
        ),
    ),
    KnownLeak(
        library="gpytorch",
        what="each gpytorch module registers its own method as a hook, and so refers to itself",
        link="https://github.com/cornellius-gp/gpytorch/issues/2649",
        remedy="call `model._load_state_dict_pre_hooks.clear()` when the model is built, or gc.collect() after use",
        seen_in="1.15.1",
        kinds=(LeakKind.CYCLE,),
        references=(
            Reference(EdgeKind.BOUND_SELF, file="/gpytorch/module.py"),
            Reference(EdgeKind.ATTRIBUTE, ("*_pre_hooks",)),
        ),
    ),
    KnownLeak(
        library="deepspeed",
        what="hooks of a BF16_Optimizer on the parameters' autograd nodes keep the optimizer, which keeps the nodes",
        link="https://github.com/deepspeedai/DeepSpeed/issues/5496",
        remedy="call engine.destroy(), which removes the hooks in deepspeed 0.14.5 or later",
        seen_in="0.14.4",
        fixed_in="0.14.5",
        kinds=(LeakKind.CYCLE, LeakKind.UNCOLLECTABLE),
        references=(
            Reference(EdgeKind.NODE_HOOKS, owners=frozenset({"AccumulateGrad"})),
            Reference(EdgeKind.ATTRIBUTE, ("grad_accs",), file="/deepspeed/runtime/bf16_optimizer.py"),
        ),
    ),
    KnownLeak(
        library="verl",
        what="the FSDP engine keeps the graph of each micro-batch until the whole batch is done",
        link="https://github.com/verl-project/verl/issues/6698",
        remedy="upgrade verl to 0.9 or later",
        seen_in="0.8.0",
        fixed_in="0.9.0",
        kinds=(LeakKind.GRAPH, LeakKind.RETAINED),
        references=(Reference(EdgeKind.LOCAL, ("output_lst",), file="/verl/workers/engine/"),),
    ),
    KnownLeak(
        library="zennit",
        what="a hook keeps the input of its layer, and a hook on the input's graph keeps the first hook",
        link="https://github.com/chr5tphr/zennit/issues/11",
        remedy="upgrade zennit to 0.2 or later",
        seen_in="0.1.0",
        fixed_in="0.2.0",
        kinds=(LeakKind.UNCOLLECTABLE, LeakKind.CYCLE),
        references=(
            Reference(EdgeKind.ATTRIBUTE, ("input",), file="/zennit/core.py"), Reference(EdgeKind.NODE_HOOKS),
        ),
    ),
    KnownLeak(
        library="pytorch-ignite",
        what="an Engine keeps its handlers, and their arguments keep the Engine",
        link="https://github.com/pytorch/ignite/issues/3438",
        remedy="upgrade pytorch-ignite to 0.5.3 or later, or call gc.collect() after each run",
        seen_in="0.5.2",
        fixed_in="0.5.3",
        kinds=(LeakKind.CYCLE,),
        references=(
            Reference(EdgeKind.ATTRIBUTE, ("_event_handlers",), frozenset({"Engine"}), file="/ignite/engine/engine.py"),
            # a handler that refers to the Engine itself is an item of two containers only
            Reference(EdgeKind.ITEM), Reference(EdgeKind.ITEM), Reference(EdgeKind.ITEM),
        ),
    ),
    KnownLeak(
        library="transformer-lens",
        what="the table of modules of a HookedRootModule has the module itself",
        link="https://github.com/TransformerLensOrg/TransformerLens/issues/290",
        remedy="upgrade transformer-lens to 1.3 or later, or call gc.collect() after use",
        seen_in="1.2.2",
        fixed_in="1.3.0",
        kinds=(LeakKind.CYCLE,),
        references=(
            Reference(EdgeKind.ATTRIBUTE, ("mod_dict",), file="/transformer_lens/hook_points.py"),
            Reference(EdgeKind.VALUE, ("''",)),
        ),
    ),
)  # fmt: skip


def known_leak(
    kind: LeakKind | FindingKind,
    edges: Sequence[Edge],
    *,
    grows_at: Edge | None = None,
    hook: Vertex | None = None,
) -> KnownLeak | None:
    """Return the library's leak that a path or a cycle shows; None if it is the program's own.

    Args:
        kind: the kind of the leak, or of a finding.
        edges: its references, the root's first.
        grows_at: the reference among them that grows: each call adds another one like it. None if it is not known.
        hook: the function that each call registers as a hook, if the path ends at a table of hooks.
    """
    edges = edges if hook is None else [*edges, Edge(EdgeKind.VALUE, owner=hook)]
    for known in KNOWN_LEAKS:
        if known.shows_in(kind, edges, grows_at) and known.affects(_version(known.library)):
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
