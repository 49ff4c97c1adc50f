"""Checkpoint modules of a model, so that a step stays within the budget of a plan (`memwatch.apply_plan`)."""

from __future__ import annotations

import contextlib
import functools
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch import compiler, nn
from torch.utils.checkpoint import checkpoint

from memwatch.capture.schema import NONE
from memwatch.errors import MemwatchError
from memwatch.planner.plan import BudgetError
from memwatch.replay.checkpoints.choose import choose_regions
from memwatch.replay.checkpoints.contexts import FirstPass, contexts_of, sizes_by_region, warn_if_above
from memwatch.replay.checkpoints.regions import module_regions, outer_writers
from memwatch.replay.measure import measure_peak
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes
from memwatch.words.processes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from memwatch.replay.checkpoints.choose import Choice
    from memwatch.replay.checkpoints.contexts import ContextMaker, Contexts, Sizes
    from memwatch.replay.checkpoints.regions import Region
    from memwatch.replay.checkpoints.step import TrainingStep

_FORWARD: Final = "forward"
_WHAT: Final = "memwatch.apply_plan"
_SEVERAL_MODELS: Final = (
    "the recorded step trains several models with the same modules, and the recording does not show which of them this "
    "is; record a step that trains only this model"
)
_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(eq=False)
class AppliedPlan:
    """A model with checkpointed modules. As a context manager it restores the model at the end.

    Attributes:
        modules: names of the checkpointed modules.
        saved: name of a module -> how many of its calls save their results.
        peak_increase_bytes: peak increase of the recorded block with these checkpoints.
        budget_bytes: the peak increase that was allowed.
        extra_cost_ratio: cost of recomputed calls, as a share of the step's cost.
        device: the device that is planned, such as `cpu` or `cuda:0`.
    """

    modules: list[str]
    saved: dict[str, int]
    peak_increase_bytes: int
    budget_bytes: int
    extra_cost_ratio: float
    device: str
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Restore the model. A second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def check(self, step: Callable[[], object]) -> int:
        """Run one step of the program and return its peak increase by the allocator's own events (bytes).

        Raises:
            BudgetError: the step took more than `peak_increase_bytes`. The model is restored.
        """
        with measure_peak(self.device) as measured:
            step()
        found_bytes = measured.peak_increase_bytes
        if found_bytes > self.peak_increase_bytes:
            self.undo()
            raise BudgetError(
                f"the plan claims a peak increase of {format_bytes(self.peak_increase_bytes)}, and a step took "
                f"{format_bytes(found_bytes)}",
                None,
                found_bytes,
                advice="record a step as large as this one and plan again",
            )
        return found_bytes

    def __enter__(self) -> AppliedPlan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __str__(self) -> str:
        count = sum(self.saved.values())
        return (
            f"peak increase {format_bytes(self.peak_increase_bytes)}, budget {format_bytes(self.budget_bytes)}, "
            f"extra cost {100 * self.extra_cost_ratio:.1f} %: it checkpoints "
            f"{counted(len(self.modules), 'module')} and saves {counted(count, 'result')} in them"
        )


def apply_step(
    model: nn.Module, step: TrainingStep, budget_bytes: int, *, strict: bool = False
) -> AppliedPlan:
    """Checkpoint modules of a model, so that a recorded step of it stays within a budget; see `memwatch.apply_plan`."""
    if len(step.again_start):
        raise MemwatchError(
            "the recorded program has checkpoints of its own; pass them context_fn=plan.checkpoint_contexts, "
            "or take them out and record again"
        )
    names = _Names(model, step)
    sets = [found for regions in module_regions(step) if (found := names.allowed(regions))]
    choice = choose_regions(step, sets, budget_bytes)
    if not sets and choice.peak_bytes > budget_bytes:
        raise MemwatchError(
            "no module of the recorded step can be checkpointed in this model; record a whole training step of "
            "this very model, with backward, and plan again"
        )
    warn_if_above(choice, budget_bytes, _WHAT, strict=strict, stacklevel=4)
    sizes = sizes_by_region(choice)
    applied = _figures(names, step, choice, budget_bytes)
    check = _Check(FirstPass(_WHAT, step.device, applied.undo), choice.pass_bytes)
    check.first_pass.strict = strict
    keys = list(dict.fromkeys(region.key for region in choice.regions))
    if len({*map(names.name, keys)}) < len(keys):
        # memwatch found no variables of two models, so they have no names
        raise MemwatchError(_SEVERAL_MODELS)
    for key in keys:
        module = names.module(key)
        if isinstance(module.__dict__.get(_FORWARD), Checkpointed):
            applied.undo()
            raise MemwatchError("a plan is applied to this model already; undo() that first")
        applied._undo.append(_wrap(module, sizes.get(key), check))
    return applied


def _figures(names: _Names, step: TrainingStep, choice: Choice, budget_bytes: int) -> AppliedPlan:
    keys = list(dict.fromkeys(region.key for region in choice.regions))
    saved = {names.name(key): sum(entry[0] == key for entry in choice.saved) for key in keys}
    price = float(step.call_price.sum())
    ratio = choice.again_price / price if price else 0.0
    return AppliedPlan(list(saved), saved, choice.peak_bytes, budget_bytes, ratio, step.device)


class _Names:
    """Finds the modules of a recording in a model. The recording may have other models, too.

    Raises:
        MemwatchError: the recording has several models that it trains and that look like this one.
    """

    def __init__(self, model: nn.Module, step: TrainingStep) -> None:
        self._model, self._step = model, step
        self._root = self._path_of_model()

    def _path_of_model(self) -> tuple[str, ...] | None:
        """Return the recorded path of the model itself; None if no recorded module looks like one of its modules.

        The path is the one under which most modules of the model have a recorded module of the same name and class.
        A larger model may contain all of these names, so of several such paths, the path with the fewest other modules
        is the model's.
        """
        classes = {
            tuple(path): name
            for path, name in zip(self._step.module_path, self._step.module_class, strict=True)
        }
        own = {
            tuple(name.split(".")) if name else (): type(module).__name__
            for name, module in self._model.named_modules()
        }
        below: dict[tuple[str, ...], int] = {}  # the number of modules below each path, with the path itself
        # how many of them are like the module of this name in the model
        alike: dict[tuple[str, ...], int] = {}
        for path, name in classes.items():
            for length in range(1, len(path) + 1):
                root = path[:length]
                below[root] = below.get(root, 0) + 1
                alike[root] = alike.get(root, 0) + (own.get(path[length:]) == name)
        most = max(alike.values(), default=0)
        if not most:
            return None
        found = [root for root, count in alike.items() if count == most]
        fewest = min(below[root] for root in found)
        found = [root for root in found if below[root] == fewest]
        if len(found) > 1:  # such as a model and its average, or a policy and its target
            found = [root for root in found if self._is_trained(root)] or found
        if len(found) > 1:
            raise MemwatchError(_SEVERAL_MODELS)
        return found[0]

    def _is_trained(self, root: tuple[str, ...]) -> bool:
        """Return True if a backward read a tensor that a call of the module at a path, or of a part of it, saved."""
        step = self._step
        is_below = np.array([tuple(path[: len(root)]) == root for path in step.module_path], dtype=bool)
        runs = np.flatnonzero(step.run_module != NONE)
        runs = runs[is_below[step.run_module[runs]]]
        saved_by = step.pack_call[step.pack_read != NONE]
        return any(
            ((saved_by >= start) & (saved_by < end)).any()
            for start, end in zip(step.run_start[runs].tolist(), step.run_end[runs].tolist(), strict=True)
        )

    def _is_of_model(self, key: int) -> bool:
        return self._root is not None and tuple(self._step.module_path[key][: len(self._root)]) == self._root

    def name(self, key: int) -> str:
        """Return the name of a recorded module in the model. It must be a module of this model."""
        return ".".join(self._step.module_path[key][len(self._root or ()) :])

    def module(self, key: int) -> nn.Module:
        """Return a recorded module of the model."""
        return self._model.get_submodule(self.name(key))

    def allowed(self, regions: list[Region]) -> list[Region]:
        """Return the regions whose modules exist in the model and write only statistics of batch norms."""
        refused = {region.key for region in regions if not self._is_allowed(region)}
        return [region for region in regions if region.key not in refused]

    def _is_allowed(self, region: Region) -> bool:
        try:
            writers = outer_writers(self._step, region) or set()
            if not all(map(self._is_of_model, (region.key, *writers))):
                return False
            is_same = type(self.module(region.key)).__name__ == self._step.module_class[region.key]
            return is_same and all(isinstance(self.module(writer), _BATCH_NORMS) for writer in writers)
        except AttributeError as error:
            pass_on(error)
            return False


class _Check(NamedTuple):
    """The measurement of the first pass, and the bytes that the plan claims for it."""

    first_pass: FirstPass
    claim_bytes: int


def _wrap(module: nn.Module, sizes: Sizes | None, check: _Check) -> Callable[[], None]:
    """Make the forward of a module run as a checkpointed region; return a function that undoes this."""
    former = module.__dict__.get(_FORWARD)
    has_statistics = any(isinstance(each, _BATCH_NORMS) for each in module.modules())
    wrapper = Checkpointed(module, sizes, former, check, has_statistics=has_statistics)
    module.__dict__[_FORWARD] = wrapper

    # the wrapper refers to `undo` through `check`, so a strong reference to the module would make a cycle
    found = weakref.ref(module)

    def undo() -> None:
        space = getattr(found(), "__dict__", {})
        if space.get(_FORWARD) is wrapper:
            del space[_FORWARD]
            if former is not None:
                space[_FORWARD] = former

    return undo


class Checkpointed:
    """The forward of a module, as a checkpointed region.

    It is an attribute of the module, so it has only a weak reference to the module. A copy of the module gets a forward
    of its own.
    """

    def __init__(
        self,
        module: nn.Module,
        sizes: Sizes | None,
        former: Callable[..., Any] | None,
        check: _Check | None,
        *,
        has_statistics: bool,
    ) -> None:
        self._module = weakref.ref(module)
        self._sizes = sizes
        self._former = former
        self._check = check
        self._has_statistics = has_statistics

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward. If gradients are enabled, run it as a checkpointed region."""
        module = self._module()
        assert module is not None, "its forward is called"
        forward = self._former or functools.partial(type(module).forward, module)
        if not torch.is_grad_enabled() or compiler.is_compiling():
            return forward(*args, **kwargs)
        run = functools.partial(forward, **kwargs) if kwargs else forward
        is_checked = self._check is None or self._check.first_pass.is_over
        if self._sizes is None and not self._has_statistics and is_checked:
            return checkpoint(run, *args, use_reentrant=False)
        return checkpoint(run, *args, use_reentrant=False, context_fn=self._contexts)

    def _contexts(self) -> Contexts:
        around: list[ContextMaker] = [self._without_statistics] if self._has_statistics else []
        if self._check is not None:
            around += self._check.first_pass.region(self._check.claim_bytes)
        return contexts_of(self._sizes, around)

    @contextlib.contextmanager
    def _without_statistics(self) -> Iterator[None]:
        """Keep the running statistics of batch norms unchanged while the region runs again.

        With a momentum of 0, a batch norm writes the old values again. Its other results depend on the batch only. It
        still gets the statistics as arguments, because autograd has to save the same tensors as in the first run.
        """
        module = self._module()
        norms = [
            (each, each.momentum, each.num_batches_tracked)
            for each in (module.modules() if module is not None else ())
            if isinstance(each, _BATCH_NORMS) and each.training and each.track_running_stats
        ]
        for norm, _, _ in norms:
            norm.momentum = 0.0
            norm.num_batches_tracked = None
        try:
            yield
        finally:
            for norm, momentum, count in norms:
                norm.momentum, norm.num_batches_tracked = momentum, count

    def __deepcopy__(self, memo: dict[int, Any]) -> Checkpointed:
        copy = memo.get(id(self._module()))
        assert isinstance(copy, nn.Module), "a module is copied before its attributes"
        return Checkpointed(copy, self._sizes, None, None, has_statistics=self._has_statistics)

    def __reduce__(self) -> tuple[Any, ...]:
        return _own_forward, (self._module(),)


def _own_forward(module: nn.Module) -> Callable[..., Any]:
    """Return the forward of the module's class. A pickled model is loaded without its plan."""
    return functools.partial(type(module).forward, module)
