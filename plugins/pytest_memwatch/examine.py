"""Run the body of one test as its plan says, and judge what it did to memory."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from memwatch.sizes import format_bytes
from pytest_memwatch.caches import kept_by_cache, made_by_machinery
from pytest_memwatch.errors import PeakError
from pytest_memwatch.measure import Measurement, describe
from pytest_memwatch.verdict import (
    LEAK_SECTION,
    PEAK_SECTION,
    leak_data,
    leak_section,
    leak_sentence,
    peak_section,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.leaks import Leak
    from memwatch.profile import Profile
    from pytest_memwatch.options import Settings
    from pytest_memwatch.plan import Plan

Body = Callable[..., Any]
"""The function of a test, called with its fixture values."""


class Examination:
    """One run of one test under its plan.

    Attributes:
        data: plain values that the report object carries to the summary, the JSON file and the baselines.
        sections: titles and texts for the failure report.
        error: the error raised against the test, if any.
        sentence: its one-sentence form.
    """

    def __init__(
        self, plan: Plan, settings: Settings, arguments: dict[str, Any], saved_bytes: int | None
    ) -> None:
        self.plan = plan
        self.measurement = Measurement() if plan.profiled else None
        self.leaks: list[Leak] = []
        self.data: dict[str, Any] = {"failed": None}
        self.sections: list[tuple[str, str]] = []
        self.error: BaseException | None = None
        self.sentence = ""
        self._settings = settings
        self._arguments = arguments
        self._saved_bytes = saved_bytes
        if plan.allowed:
            self.data["allowed"] = plan.allowed.reason

    def run(self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run a body, once or several times."""
        __tracebackhide__ = True
        if self.plan.growth is not None:
            result = self._grow(body, args, kwargs)
        else:
            with self._measuring(), self._passing():
                result = body(*args, **kwargs)
        self._judge()
        return result

    async def run_async(self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run a body inside a running event loop: always once, so leaks are judged by one pass."""
        __tracebackhide__ = True
        with self._measuring(), self._passing(force=self.plan.growth is not None):
            result = await body(*args, **kwargs)
        self._judge()
        return result

    @property
    def reading(self) -> Profile | None:
        """The part of the body with the highest peak, if it was measured."""
        if self.measurement is None or not self.measurement.readings:
            return None
        return self.measurement.highest

    def close(self) -> None:
        """Note what was measured of a body that failed by itself; drop the test's values."""
        self._arguments = {}
        if self.measurement is not None and self.measurement.readings and "peak_bytes" not in self.data:
            self._note_figures(self.measurement)

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        __tracebackhide__ = True
        with nullcontext() if self.measurement is None else self.measurement:
            yield

    def _grow(self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        __tracebackhide__ = True
        from memwatch.leaks import find_leaks

        check = self.plan.growth
        assert check is not None
        warmup = self._settings.warmup if check.warmup is None else check.warmup
        runs = self._settings.runs if check.runs is None else check.runs
        counter = _Repeated()
        repeated = counter.around(body)
        if self.measurement is not None:
            with self._measuring():
                repeated(*args, **kwargs)
            warmup = max(0, warmup - 1)
        if not kwargs.keys().isdisjoint(
            ("fn", "warmup", "runs")
        ):  # fixtures named as arguments of find_leaks
            repeated, args, kwargs = functools.partial(repeated, *args, **kwargs), (), {}
        self.leaks = find_leaks(repeated, *args, warmup=warmup, runs=runs, **kwargs)
        self.data["check"] = "growth"
        return counter.result

    @contextmanager
    def _passing(self, *, force: bool = False) -> Iterator[None]:
        __tracebackhide__ = True
        # A suite, or a test, that never imports torch has no tensors to leak: do not import it on its behalf.
        if not (force or (self.plan.single_pass and "torch" in sys.modules)):
            yield
            return
        from memwatch.leaks import TensorLeakError, check_leaks

        # To tell the line of a birth takes a dispatch mode, and some programs notice one (torch.jit.trace).
        check = check_leaks(sites=False)
        check.__enter__()
        try:
            yield
        except BaseException:
            # The test failed by itself and its traceback holds its locals: end the check without a look.
            check.__exit__(GeneratorExit, GeneratorExit(), None)
            raise
        try:
            check.__exit__(None, None, None)
        except TensorLeakError as error:
            self.leaks = error.leaks
        self.data["check"] = "single pass"

    def _judge(self) -> None:
        __tracebackhide__ = True
        if self.measurement is not None:
            self._note_figures(self.measurement)
        real = self._sort_leaks()
        too_high = self._peak_fault()
        if too_high and self.measurement is not None:
            self.sections.append((PEAK_SECTION, peak_section(self.data)))
        if real:
            self._blame_leaks(real)
        if too_high:
            self.data["failed"], self.sentence = "peak", too_high
            self.error = PeakError(too_high)
            raise self.error

    def _note_figures(self, measurement: Measurement) -> None:
        self.data.update(
            describe(measurement, top=self._settings.top, stack_depth=self._settings.stack_depth)
        )

    def _blame_leaks(self, leaks: list[Leak]) -> None:
        __tracebackhide__ = True
        from memwatch.leaks import TensorLeakError

        self.sections.insert(0, (LEAK_SECTION, leak_section(leaks)))
        self.data["failed"], self.sentence = "leak", leak_sentence(leaks)
        self.error = TensorLeakError(leaks)
        raise self.error

    def _sort_leaks(self) -> list[Leak]:
        """Note every leak where it belongs, and return those that count against the test."""
        growth = self.plan.growth
        rules = (*(growth.ignore if growth else ()), *self._settings.ignore)
        real = []
        for leak in self.leaks:
            rule = next((rule for rule in rules if rule.matches(leak)), None)
            if rule is not None:
                known = {"pattern": rule.pattern, "reason": rule.reason}
                self.data.setdefault("ignored", []).append({**leak_data(leak), **known})
            elif growth is None and made_by_machinery(leak):
                self.data.setdefault("machinery", []).append(leak_data(leak))
            elif growth is None and kept_by_cache(leak):
                self.data.setdefault("kept", []).append(leak_data(leak))
            else:
                real.append(leak)
        self.data["leaks"] = [leak_data(leak) for leak in real]
        tolerated = growth is not None and sum(leak.nbytes for leak in real) <= growth.max_bytes
        return [] if tolerated else real

    def _peak_fault(self) -> str:
        """Say in a sentence how the peak is too high; empty if it is not."""
        measurement, limit = self.measurement, self.plan.limit
        if measurement is None:
            return ""
        if limit is not None:
            most, found = limit.nbytes(self._arguments), measurement.peak_increase_bytes(limit.device)
            self.data["limit_bytes"] = most
            if found > most:
                where = f" on {limit.device}" if limit.device else ""
                allowed, added = _exact(most, found), _exact(found, most)
                return f"Test was limited to a peak of {allowed} but its body added {added}{where}"
        return self._regression(measurement.peak_increase_bytes())

    def _regression(self, found: int) -> str:
        saved, tolerance = self._saved_bytes, self._settings.compare_fail
        if saved is None:
            return ""
        self.data["saved_bytes"] = saved
        if tolerance is None or found <= tolerance.highest_bytes(saved):
            return ""
        before, after = _exact(saved, found), _exact(found, saved)
        return f"Peak rose from {before} to {after}, more than the {tolerance.text} allowed"


class _Repeated:
    """Counts the runs of a body, and tells which one failed."""

    def __init__(self) -> None:
        self.calls = 0
        self.result: object = None

    def around(self, body: Body) -> Body:
        """Return the body, counting; a plain function, so that leaks held by it are followed into it."""

        def repeated(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            self.calls += 1
            try:
                result = body(*args, **kwargs)
            except Exception as error:
                self._explain(error)
                raise
            if self.calls == 1:  # what a body returns is pytest's business; later results are dropped
                self.result = result

        return repeated

    def _explain(self, error: Exception) -> None:
        if self.calls > 1 and hasattr(error, "add_note"):
            error.add_note(
                f"memwatch: this is run {self.calls} of the body; the runs before passed. "
                "no_tensor_leaks runs a body several times with the same fixture values: "
                "make it repeatable, or write no_tensor_leaks(warmup=0, runs=1)"
            )


def _exact(nbytes: int, other: int) -> str:
    """Print a size so that it differs from the other one."""
    short = format_bytes(nbytes)
    return short if short != format_bytes(other) or nbytes == other else f"{nbytes} B"
