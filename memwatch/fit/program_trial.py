"""Try a way on a training script: start the script afresh, and run its first steps with the way."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from memwatch.devices import adapter_of, is_out_of_memory
from memwatch.errors import MemwatchError
from memwatch.fit.blocks import SavedScan
from memwatch.fit.live_bytes import LiveBytes, LivingStorages, count_live_bytes, device_of
from memwatch.fit.state import fingerprint, optimizers_of, random_states
from memwatch.fit.trial import LEARNING_STEPS, OUT_OF_MEMORY, Measurement, plan_of, trained
from memwatch.fit.way import Applied, Expressions, Way
from memwatch.heap.variable_search import Making, making_of, names_in_one_call
from memwatch.kinds.fit import DEFAULT_STEPS
from memwatch.own_code import is_program_code
from memwatch.patches import Patches
from memwatch.profile import profile
from memwatch.replay.measure import can_measure
from memwatch.words import fit as words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from memwatch.planner.plan import Plan
    from memwatch.private_files import PrivateFiles
    from memwatch.reading import Reading


_FEWEST_STEPS: Final = 2
"""Steps of a run. The first step is not timed, so one step is not enough."""
_FEWEST_GROWN: Final = 2  # steps whose growth must be alike, because a single step shows no rate
_LEAST_GROWTH_RATIO: Final = 0.01
"""Growth of a step, as a share of the peak. Smaller growth is ignored. A guess."""
_ALIKE_RATIO: Final = 1.25
"""Steps grow alike if the largest growth is at most so many times the smallest. A guess: a list of losses grew by
exactly the same bytes in each step."""


class Enough(BaseException):
    """Ends a run of the program. It is a BaseException, so that no `except Exception` of the program catches it."""


class TooFewStepsError(MemwatchError):
    """The program ended before enough steps of its optimizer."""


class ProgramTrial:
    """Tries ways on a program. It fits the program's first model with an optimizer.

    Args:
        load: makes the process look as if Python had just started on the program, and returns the program.
        steps: steps of the optimizer after which a run is ended; None for `DEFAULT_STEPS`, or fewer if the program
            makes fewer.
        files: keeps the program's writes away from the user's files; None lets it write.
        print_line: called with a sentence if the program makes fewer steps.

    Attributes:
        names: the program's names for its model and optimizers.
        device: the device of the model.
    """

    def __init__(
        self,
        load: Callable[[], Callable[[], None]],
        steps: int | None = None,
        files: PrivateFiles | None = None,
        print_line: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.names, self.device = Expressions(), "cpu"
        self._left = LivingStorages(self.device)
        self._load, self._files, self._print_line = load, files, print_line
        self._steps = max(steps or DEFAULT_STEPS, _FEWEST_STEPS)
        self._may_be_fewer = steps is None
        self._folder = os.getcwd()
        self._modules = set(sys.modules)
        self._arguments = list(sys.argv)
        self._random_states = random_states()
        self._run: _Run | None = None

    @property
    def model(self) -> nn.Module:
        """The model of the last run."""
        assert self._run is not None
        assert self._run.model is not None
        return self._run.model

    @property
    def optimizers(self) -> list[Optimizer]:
        """Its optimizers."""
        return [] if self._run is None else self._run.optimizers

    @property
    def makes_optimizers_later(self) -> bool:
        """Whether a library makes its optimizers when the training begins."""
        return self.names.are_made_later

    @property
    def left_bytes(self) -> int:
        """Bytes of earlier runs that are still alive, which a fresh process would not have.

        There are two known causes. A function that a run gave to `atexit` holds the variables of its script. And if the
        second forward of a checkpoint fails, autograd can have a cycle that is never freed.
        """
        return self._left.nbytes

    def run(self, way: Way) -> Measurement:
        """Run the program's first steps in a way; the first of them is not counted."""
        live = LiveBytes()

        @contextlib.contextmanager
        def counting() -> Any:
            assert self._run is not None
            if self._run.is_planned and not can_measure():
                raise _StillMeasuringError
            with count_live_bytes(self._run.device) as counted:
                self._run.step_ends_ns = counted.marks_ns
                yield
            live.baseline_bytes, live.peak_bytes = counted.baseline_bytes, counted.peak_bytes
            live.marked_bytes = counted.marked_bytes

        try:
            run = self._run_program(way, counting)
        except (TooFewStepsError, _StillMeasuringError) as error:
            if not way.is_planned:
                raise
            return Measurement(way, None, failure=str(error))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return Measurement(way, None, failure=OUT_OF_MEMORY)
        left_bytes = self.left_bytes
        peak_bytes, baseline_bytes = live.peak_bytes - left_bytes, live.baseline_bytes - left_bytes
        return Measurement(
            way,
            peak_bytes,
            baseline_bytes,
            min(run.times_ns),
            run.results,
            growth_bytes=growth_of_steps(live),
        )

    def scan(self) -> SavedScan:
        """Run the program's first steps and return the bytes that the modules save."""
        found = SavedScan()
        self._run_program(Way(), lambda: found.watching(self.model))
        return found

    def recorded(self, way: Way, *, stacks: bool = False) -> Reading:
        """Return the recording of the program's steps in a way."""
        recording = profile(stacks=stacks, holders=False)
        self._run_program(way, lambda: recording)
        return recording.on(self.device) if self.device in recording.devices else recording

    def plan(self, way: Way) -> Plan:
        """Return a plan of the program's steps in a way, to be applied within some budget.

        Raises:
            MemwatchError: the steps cannot be recorded for a plan.
        """
        recording = profile(stacks=False, holders=False, replay=True)
        self._run_program(way, lambda: recording)
        return plan_of(recording)

    def _run_program(self, way: Way, within: Callable[[], AbstractContextManager[Any]]) -> _Run:
        self._start_afresh()
        run = self._run = _Run(way, self._steps, within)
        program = self._load()  # it drops the variables of the last run
        gc.collect()
        self._left = LivingStorages(self.device)
        exit_code = None
        with (
            contextlib.suppress(Enough),
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            run.watching(),
        ):
            try:
                program()
            except SystemExit as error:
                exit_code = error.code
        if not run.is_complete:
            uncounted = run.needed_steps - self._steps
            if self._may_be_fewer and not way.is_planned and run.steps >= _FEWEST_STEPS:
                self._steps = run.steps
                self._print_line(words.PROGRAM_HAS_FEWER_STEPS.format(steps=run.steps))
                return self._run_program(way, within)
            steps = _FEWEST_STEPS if self._may_be_fewer else self._steps
            message = words.too_few_steps(run.steps, uncounted, steps, _FEWEST_STEPS, exit_code)
            raise TooFewStepsError(message)
        self.names, self.device = run.names, run.device
        return run

    def _start_afresh(self) -> None:
        """Undo the effects of the last run on files, modules, the model and random generators."""
        os.chdir(self._folder)
        if self._files is not None:
            self._files.renew()
        self._run = None
        drop_modules(besides=self._modules)
        sys.argv[:] = self._arguments
        for restore in self._random_states:
            restore()


def growth_of_steps(live: LiveBytes) -> int:
    """Return the growth of live bytes per step, the smallest of all steps; 0 if the steps did not grow alike.

    A leak grows by about the same bytes in each step. Batches of different lengths do not.
    """
    levels = [live.baseline_bytes, *live.marked_bytes]
    grown = [after - before for before, after in pairwise(levels)]
    if len(grown) < _FEWEST_GROWN or min(grown) <= _LEAST_GROWTH_RATIO * live.peak_bytes:
        return 0
    return min(grown) if max(grown) <= _ALIKE_RATIO * min(grown) else 0


def drop_modules(*, besides: Collection[str]) -> None:
    """Drop the modules of the program, with what they hold, so that its next run imports them again.

    Args:
        besides: names of modules that stay.
    """
    for name in set(sys.modules).difference(besides):
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and is_program_code(file):
            del sys.modules[name]
    gc.collect()


class _StillMeasuringError(MemwatchError):
    """A planned way could not measure its step: a result of the program waits for a backward that never runs."""

    def __init__(self) -> None:
        super().__init__(
            "the program keeps a result whose backward does not run, so no step of it could be measured and planned; "
            "drop it, or compute it under torch.no_grad()"
        )


class _Run:
    """One run: it finds the model at its first call, activates the way, and ends the program after some steps.

    The first step is not counted. In a planned way, memwatch measures and plans in the next steps. They are not
    counted either, because memwatch cannot measure while this run receives the allocator's events.

    Attributes:
        needed_steps: steps of the optimizer after which the run is ended.
        is_planned: whether memwatch itself runs in the steps.
    """

    def __init__(self, way: Way, steps: int, within: Callable[[], AbstractContextManager[Any]]) -> None:
        self.model: nn.Module | None = None
        self.optimizers: list[Optimizer] = []
        self.names, self.device = Expressions(), "cpu"
        self.applied: Applied | None = None
        self.times_ns: list[int] = []
        self.step_ends_ns: list[int] = []
        self.results = b""
        self.steps = 0
        self.is_complete = False
        self._way, self._compared, self._within = way, steps, within
        self.is_planned = way.is_planned
        self._uncounted = 1 + LEARNING_STEPS if way.is_planned else 1
        self.needed_steps = self._uncounted - 1 + steps
        self._pre_hook: RemovableHandle | None = None
        self._after_step: RemovableHandle | None = None
        self._patches = Patches()
        self._makings: dict[int, Making] = {}
        self._window = ExitStack()
        self._last_ns = 0

    @contextlib.contextmanager
    def watching(self) -> Any:
        """Watch the first call of a model and the steps of its optimizer."""
        self._pre_hook = register_module_forward_pre_hook(self._called)
        self._after_step = register_optimizer_step_post_hook(self._stepped)
        self._patches.put_around(Optimizer, "__init__", self._optimizer_is_made)
        try:
            with self._window:
                yield
        finally:
            self._pre_hook.remove()
            self._after_step.remove()
            self._patches.take_off()

    def _optimizer_is_made(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        self._makings[id(optimizer)] = making_of(optimizer, sys._getframe(1))

    def _called(self, module: nn.Module, args: Any) -> None:
        if self.model is not None or not torch.is_grad_enabled():
            return
        self.optimizers = optimizers_of(module)
        if not self.optimizers:
            return
        self.model, self.device = module, device_of(module)
        found = names_in_one_call([module, *self.optimizers], sys._getframe(1), self._makings)
        nameless = [each for each in map(id, self.optimizers) if each not in found.names]
        self.names = replace(
            Expressions.of(found.names, module, self.optimizers),
            function=found.function,
            are_made_later=any(
                each in self._makings and self._makings[each].function is None for each in nameless
            ),
        )
        if self._pre_hook is not None:
            self._pre_hook.remove()  # a compiler would trace it into the model
        self.applied = Applied(self._way, module, self.optimizers)

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.model is None or optimizer is not self.optimizers[0] or self.is_complete:
            return
        adapter_of(self.device).synchronize(self.device)
        now_ns = time.perf_counter_ns()
        self.steps += 1
        if self.steps > self._uncounted:
            self.times_ns.append(now_ns - self._last_ns)
            self.step_ends_ns.append(time.time_ns())
        if self.steps == self.needed_steps:
            self._window.close()
        if self.steps == self._compared:  # the same number of steps for all ways
            self.results = fingerprint(trained(self.model, self.optimizers))
        if self.steps == self.needed_steps:
            self.is_complete = True
            raise Enough
        if self.steps == self._uncounted:
            gc.collect()
            self._window.enter_context(self._within())
            # A recording notes the end of a step in such a hook too. This hook ends the recording, so it must run last
            if self._after_step is not None:
                self._after_step.remove()
            self._after_step = register_optimizer_step_post_hook(self._stepped)
        self._last_ns = time.perf_counter_ns()
