"""Run the body of one test under its checks, and decide whether it fails for its memory.

It also finds the lines that made leaked tensors. Recording them takes a dispatch mode and a few microseconds per op, so
a clean test of `--memwatch-leaks=all` runs without it. Once a test leaves a tensor with an unknown line, the next tests
run with it: one cause often shows in many neighbouring tests. If a profile of the same test recorded the tensors, its
lines are used.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import sys
import types
import unittest
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from memwatch.sizes import format_bytes
from memwatch.words.leaks import FIXTURE, OF_TEST
from pytest_memwatch.ignore import kept_by_cache, made_by_machinery
from pytest_memwatch.measure import Measurement, describe, largest_lines
from pytest_memwatch.outcome import FindingsError, PeakError
from pytest_memwatch.verdict import (
    FINDINGS_SECTION,
    LEAK_SECTION,
    PEAK_SECTION,
    finding_data,
    findings_section,
    findings_sentence,
    leak_data,
    leak_section,
    leak_sentence,
    peak_section,
)

if TYPE_CHECKING:
    import weakref
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from memwatch.analysis.findings.finding import Finding
    from memwatch.leaks import Leak
    from memwatch.leaks.diagnose import Keepers
    from memwatch.leaks.find import Runs
    from memwatch.leaks.known_causes import KnownCauses
    from memwatch.leaks.new_storages import NewStorage
    from memwatch.reading import Reading
    from pytest_memwatch.options import Checks, FindingsCheck, Settings

_LEAST_RUNS: Final = 2
"""Measured runs of a body that leaves nothing."""
Body = Callable[..., Any]
"""The function of a test, called with its fixture values."""
MOST_TESTS: Final = 20
"""Tests in which memwatch searches for the line of one cause."""
MOST_OPS: Final = 20_000
"""The search ends after the test in which these tests have run so many ops: half a second's work."""
_GROWTH: Final = "growth"
"""Key in `LineSearch`, beside the causes, for tests that may have replaced a tensor by a larger one.

Only recorded ops show whether they have.
"""
Line = tuple[str, int, str]
"""File, line and function."""
Lines = tuple[Line | None, Line | None]
"""The line that made a storage, and the line that called its function."""


def is_unittest(item: pytest.Item) -> bool:
    """Return True if a test is a method of a unittest.TestCase."""
    return isinstance(item, pytest.Function) and isinstance(item.instance, unittest.TestCase)


def is_doctest(item: pytest.Item) -> bool:
    """Return True if a test is the examples of a docstring or a text file."""
    return isinstance(item, pytest.DoctestItem)


@contextmanager
def examined_doctest(item: pytest.Item, examination: Examination) -> Iterator[None]:
    """Examine the examples of a doctest while the block lasts. They run once, because they clear their namespace."""
    body = functools.partial(_without_shown_value, item.runtest)
    item.runtest = functools.partial(examination.run, body, (), {})  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del item.runtest
        examination.is_over = True


def _without_shown_value(run: Callable[[], None]) -> None:
    """Run the examples of a doctest, and drop the value that the last of them displayed.

    `sys.__displayhook__` keeps the value in `builtins._`. If an example itself stores an object there, as
    `gettext.install` does, that object stays.
    """
    __tracebackhide__ = True
    names = vars(builtins)
    had, before = "_" in names, names.get("_")
    display = sys.__displayhook__
    shown: list[object] = []

    @functools.wraps(display)
    def display_and_note(value: object, /) -> None:
        try:
            display(value)
        finally:
            if value is not None:  # None is not displayed
                shown[:] = [names.get("_")]

    sys.__displayhook__ = display_and_note
    try:
        run()
    finally:
        if sys.__displayhook__ is display_and_note:
            sys.__displayhook__ = display
        if shown and names.get("_", shown) is shown[0]:
            if had:
                names["_"] = before
            else:
                del names["_"]
        shown.clear()


@contextmanager
def examined(item: pytest.Function, examination: Examination) -> Iterator[None]:
    """While the block lasts, replace the body of a test by a function that examines it."""
    body = item.obj
    wrapped = _around(body, examination)
    item.obj = wrapped
    # unittest looks an async method up by its name on the instance and does not use `item.obj`
    by_name = is_unittest(item) and inspect.iscoroutinefunction(body)
    if by_name:
        setattr(item.instance, item.name, wrapped)
    try:
        yield
    finally:
        item.obj = body
        examination.is_over = True
        if by_name:
            delattr(item.instance, item.name)


def _around(body: Callable[..., Any], examination: Examination) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(body):

        @functools.wraps(body)
        async def run_async(*args: Any, **kwargs: Any) -> object:
            __tracebackhide__ = True
            return await examination.run_async(body, args, kwargs)

        return run_async

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> object:
        __tracebackhide__ = True
        return examination.run(body, args, kwargs)

    return run


class Examination:
    """One examined run of a test.

    Attributes:
        data: plain values for the summary, the JSON file and the baselines.
        sections: titles and texts for the failure report.
        error: the error with which the test was failed, if any.
        sentence: the error in one sentence.
        is_over: True once the body has ended; earlier reports belong to subtests.
    """

    def __init__(
        self, checks: Checks, settings: Settings, saved_bytes: int | None, lasting: Keepers = dict
    ) -> None:
        self.checks = checks
        self._lasting = lasting  # the fixtures that outlive the test
        self.measurement = _measurement(checks) if checks.profiled else None
        self.leaks: list[Leak] = []
        self.data: dict[str, Any] = {"failed": None}
        self.sections: list[tuple[str, str]] = []
        self.error: BaseException | None = None
        self.sentence = ""
        self.is_over = False
        self._settings = settings
        self._saved_bytes = saved_bytes
        self._noted_ops: int | None = None
        self._may_have_grown = False
        # the storages that a live root keeps, by the cause of their leak
        self._left: dict[str, list[weakref.ref[Any]]] = {}
        self._repeated = _Repeated()
        self._failing_run = 0  # the first run with a subtest that failed
        if checks.allowed:
            self.data["allowed"] = checks.allowed.reason

    def run(self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run a body once, or several times to measure growth; return the result of the first run."""
        __tracebackhide__ = True
        if self.checks.growth is not None:
            result = self._run_repeatedly(body, args, kwargs)
        else:
            with self._measuring(), self._checking_one_pass():
                result = body(*args, **kwargs)
        self._judge()
        return result

    async def run_async(self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run a body inside a running event loop.

        The body runs only once, because its event loop ends with it. So this single pass decides about leaks.
        """
        __tracebackhide__ = True
        with self._measuring(), self._checking_one_pass(force=self.checks.growth is not None):
            result = await body(*args, **kwargs)
        self._judge()
        return result

    def repeats_subtest(self, *, failed: bool) -> bool:
        """Return True if an earlier run of the body has shown its subtests already.

        Failed subtests are shown once too: those of the first run with a failure.
        """
        run = self._repeated.calls
        if failed and self._failing_run in (0, run):
            self._failing_run = run
            return False
        return run > 1

    def explain(self, error: BaseException) -> None:
        """Add a note to an error of a subtest. It says in which run of the body the error was raised."""
        self._repeated.explain(error)

    @property
    def reading(self) -> Reading | None:
        """The reading with the highest peak, if the body was measured."""
        if self.measurement is None or not self.measurement.readings:
            return None
        return self.measurement.highest

    @property
    def may_be_emptied(self) -> bool:
        """Whether the test failed only for tensors that live objects keep, and did not ask for the check itself."""
        is_leak = self.data["failed"] == "leak" and self.checks.single_pass
        return (
            is_leak
            and any(self._left.values())
            and all(leak["kind"] == "retained" for leak in self.data["leaks"])
        )

    @property
    def is_emptied(self) -> bool:
        """Whether all tensors that such a test left are free by now."""
        return all(ref() is None for refs in self._left.values() for ref in refs)

    def is_freed(self, cause: str) -> bool:
        """Return True if all tensors that the test left for one cause, and that a live root kept, are free by now."""
        refs = self._left.get(cause, [])
        return bool(refs) and all(ref() is None for ref in refs)

    def close(self) -> None:
        """Note the figures of a body that failed by itself."""
        if self.measurement is not None and self.measurement.readings and "peak_bytes" not in self.data:
            self._note_figures(self.measurement)

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        __tracebackhide__ = True
        with nullcontext() if self.measurement is None else self.measurement:
            yield

    def _run_repeatedly(self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        __tracebackhide__ = True
        from memwatch.leaks.find import AUTO, find_growth, schedule_of

        check = self.checks.growth
        assert check is not None
        warmup = self._settings.warmup if check.warmup is None else check.warmup
        runs: Runs = check.runs or self._settings.runs or AUTO
        repeated = self._repeated.around(body)
        if self.measurement is not None:
            with self._measuring():
                repeated(*args, **kwargs)
            warmup = max(0, warmup - 1)  # the measured run is a warm-up run too
        schedule = schedule_of(warmup, runs, least=_LEAST_RUNS)
        with _causes_from(self._settings.root):
            found = find_growth(repeated, args, kwargs, schedule, followed=_without_instance(body))
        self.leaks = [replace(leak, repeat=OF_TEST) for leak in found]
        self.data["check"] = "growth"
        return self._repeated.result

    @contextmanager
    def _checking_one_pass(self, *, force: bool = False) -> Iterator[None]:
        __tracebackhide__ = True
        # If a suite or a test never imports torch, it has no tensors, and importing torch here would slow it down.
        if not (force or (self.checks.single_pass and "torch" in sys.modules)):
            yield
            return
        from memwatch.leaks import TensorLeakError, check_leaks

        # To record the line that made a tensor takes a dispatch mode. A test that asks for a check of leaks or of its
        # peak gets the mode. Other tests get it only after a test left a tensor with an unknown line.
        notes_lines = force or self.checks.asked or _line_search().is_on
        known = _known_causes()
        before = {cause: len(refs) for cause, refs in known.told.items()}
        check = check_leaks(sites=notes_lines, known=known)
        check.__enter__()
        check.name_keepers(self._lasting)
        try:
            yield
        except BaseException:
            # The test itself failed, and its traceback holds its locals, so leaks cannot be judged.
            check.__exit__(GeneratorExit, GeneratorExit(), None)
            raise
        try:
            with _causes_from(self._settings.root):
                check.__exit__(None, None, None)
        except TensorLeakError as error:
            self.leaks = error.leaks
            self._left = {cause: refs[before.get(cause, 0) :] for cause, refs in known.told.items()}
        self._may_have_grown, self._noted_ops = check.may_have_grown, check.noted_ops
        self.data["check"] = "single pass"
        in_fixtures = _fixture_growth().note(check.kept)
        if in_fixtures:
            self.data["in_fixtures"] = in_fixtures

    def _judge(self) -> None:
        __tracebackhide__ = True
        if self.measurement is not None:
            self._note_figures(self.measurement)
            self.leaks = _with_lines(self.leaks, self.measurement.readings)
        real = self._sort_leaks()
        if self.data.get("check") == "single pass":
            _line_search().learn(real, noted_ops=self._noted_ops, may_have_grown=self._may_have_grown)
        too_high = self._peak_failure()
        if too_high and self.measurement is not None:
            self.data["above_limit"] = too_high
            self._note_lines(self.measurement)
            self.sections.append((PEAK_SECTION, peak_section(self.data)))
        avoidable = self._avoidable()
        if real:
            self._fail_for_leaks(real, too_high)
        if too_high:
            self.data["failed"], self.sentence = "peak", too_high
            self.error = PeakError(too_high)
            raise self.error
        if avoidable:
            self.data["failed"] = "findings"
            with _causes_from(self._settings.root):
                self.sentence = findings_sentence(avoidable)
            self.error = FindingsError(self.sentence)
            raise self.error

    def _note_figures(self, measurement: Measurement) -> None:
        self.data.update(describe(measurement))
        if self._settings.shows_lines:
            self._note_lines(measurement)

    def _note_lines(self, measurement: Measurement) -> None:
        """Note the lines that made the memory at the peak, but only once, because it takes longer than a small test."""
        if self.data.get("top") is None:
            settings = self._settings
            self.data["top"] = largest_lines(
                measurement.highest, top=settings.top, stack_depth=settings.stack_depth
            )

    def _fail_for_leaks(self, leaks: list[Leak], too_high: str) -> None:
        __tracebackhide__ = True
        from memwatch.leaks import TensorLeakError

        is_marked = self.checks.growth is not None
        self.sections.insert(0, (LEAK_SECTION, leak_section(leaks, is_marked=is_marked)))
        self.data["failed"], self.sentence = "leak", leak_sentence(leaks)
        if too_high:
            self.sentence += f"\n{too_high}"
        self.error = TensorLeakError(leaks)
        raise self.error

    def _sort_leaks(self) -> list[Leak]:
        """Note every leak under its heading, and return the leaks that fail the test."""
        growth = self.checks.growth
        rules = (*(growth.ignore if growth else ()), *self._settings.ignore)
        real = []
        for leak in self.leaks:
            rule = next((rule for rule in rules if rule.matches(leak)), None)
            if rule is not None:
                known = {"pattern": rule.pattern, "reason": rule.reason}
                self.data.setdefault("ignored", []).append({**leak_data(leak), **known})
            elif leak.kind.is_below(leak.nbytes, self._settings.leaks_min_bytes):
                self.data.setdefault("small", []).append(leak_data(leak))
            elif made_by_machinery(leak):
                self.data.setdefault("machinery", []).append(leak_data(leak))
            elif (
                growth is None
                and leak.known is None
                and (kept_by_cache(leak) or _line_search().is_first_growth(leak))
            ):
                owner = None if leak.cut is None else leak.cut.owner
                entries = None if owner is None else owner.count
                kept = {**leak_data(leak), "entries": entries, "process": os.getpid()}
                self.data.setdefault("kept", []).append(kept)
            else:
                real.append(leak)
        self.data["leaks"] = [leak_data(leak) for leak in real]
        if growth is not None and sum(leak.nbytes for leak in real) <= growth.max_bytes:
            return [leak for leak in real if not leak.kind.row.has_bytes]  # `max_bytes` tolerates no hooks
        return real

    def _avoidable(self) -> list[Finding]:
        """Note the findings of the reading with the highest peak, and return those that fail the test."""
        check, reading = self.checks.findings, self.reading
        if check is None or reading is None:
            return []
        with _causes_from(self._settings.root):
            found = self._sort_findings(check, reading)
            self.data["findings"] = [finding_data(finding, self.data) for finding in found]
        if found:
            self.sections.append((FINDINGS_SECTION, findings_section(found, self.data)))
        return found

    def _sort_findings(self, check: FindingsCheck, reading: Reading) -> list[Finding]:
        """Note each finding that a rule ignores, and return the others that count."""
        if reading.most_finding_bytes < check.min_bytes:
            return []
        found = []
        for finding in reading.findings:
            if finding.nbytes < check.min_bytes or (
                check.kinds is not None and finding.kind not in check.kinds
            ):
                continue
            if check.only_with_backward and finding.kind == "graph" and not _has_backward(reading):
                continue
            rule = next((rule for rule in self._settings.ignore if rule.matches_finding(finding)), None)
            if rule is None:
                found.append(finding)
            else:
                known = {"pattern": rule.pattern, "reason": rule.reason}
                self.data.setdefault("ignored_findings", []).append(
                    {**finding_data(finding, self.data), **known}
                )
        return found

    def _peak_failure(self) -> str:
        """Return a sentence that says how the peak is too high; empty if it is not."""
        measurement, limit = self.measurement, self.checks.limit
        if measurement is None:
            return ""
        if limit is not None:
            most, found = limit.limit, measurement.peak_increase_bytes(limit.device)
            assert isinstance(most, int)
            self.data["limit_bytes"] = most
            if found > most:
                where = limit.device or measurement.device
                where = f" on {where}" if limit.device or where != "cpu" else ""
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


def _measurement(checks: Checks) -> Measurement:
    check = checks.findings
    return Measurement(holders=check is not None, holders_from_bytes=0 if check is None else check.min_bytes)


@contextmanager
def _causes_from(root: Path | None) -> Iterator[None]:
    """Give causes the same names from whichever folder pytest was started."""
    __tracebackhide__ = True
    from memwatch.leaks.cause import files_relative_to

    with nullcontext() if root is None else files_relative_to(root):
        yield


@functools.cache
def _known_causes() -> KnownCauses:
    """Return the causes of the leaks of this process so far, so that memwatch searches for each cause once."""
    from memwatch.leaks.known_causes import KnownCauses
    from memwatch.leaks.ledger import follow

    follow()
    return KnownCauses()


@functools.cache
def _line_search() -> LineSearch:
    """Return the search of this process for the lines that make leaked tensors."""
    return LineSearch()


@functools.cache
def _fixture_growth() -> FixtureGrowth:
    """Return the storages that the fixtures of this process keep."""
    return FixtureGrowth()


def end_checks() -> dict[str, list[int]]:
    """Forget the leaks of all tests, and stop watching gc, because no test follows.

    Returns:
        By cause, how many of the reported tensors are freed by now, and how many were reported.
    """
    _line_search.cache_clear()
    _fixture_growth.cache_clear()
    if not _known_causes.cache_info().currsize:
        return {}
    from memwatch.leaks.ledger import unfollow

    unfollow()
    freed = _known_causes().freed()
    _known_causes.cache_clear()
    return freed


def _without_instance(body: Body) -> Body:
    """Return the function of a test method, without the object that the method is bound to.

    pytest makes a new object for each test and drops it afterwards. So a list that `setUp` made may grow with each run
    of the body, and is not a leak. A list of the class or of a module is found by other paths.
    """
    inner: object = body
    while type(inner) is types.FunctionType:  # a plugin such as pytest-asyncio may have wrapped the method
        inner = vars(inner).get("__wrapped__")
    return inner.__func__ if type(inner) is types.MethodType else body


class _Repeated:
    """Counts the runs of a body, and adds to an error which run failed."""

    def __init__(self) -> None:
        self.calls = 0
        self.result: object = None

    def around(self, body: Body) -> Body:
        """Return the body as a function that counts its runs."""

        def repeated(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            self.calls += 1
            try:
                result = body(*args, **kwargs)
            except Exception as error:
                self.explain(error)
                raise
            if self.calls == 1:  # pytest checks what a test returns; it sees the first result only
                self.result = result

        return repeated

    def explain(self, error: BaseException) -> None:
        """Add a note to an error of a later run."""
        if self.calls > 1 and hasattr(error, "add_note"):
            error.add_note(
                f"memwatch: this is run {self.calls} of the body; the runs before passed. "
                "no_tensor_leaks runs a body several times with the same fixture values: "
                "make it repeatable, or write no_tensor_leaks(warmup=0, runs=1)"
            )


def _exact(nbytes: int, other: int) -> str:
    """Return a size as text that differs from the text of the other size."""
    short = format_bytes(nbytes)
    return short if short != format_bytes(other) or nbytes == other else f"{nbytes} B"


class _Left(NamedTuple):
    """The tests and ops after which the search for one line ends."""

    tests: int = MOST_TESTS
    ops: int = MOST_OPS


class LineSearch:
    """Decides whether the next test records the line of each op, to find the lines of leaks.

    It does so for a limited number of tests after a leak with an unknown line.
    """

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self._grown: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether the next test has to record lines."""
        return any(left.tests > 0 and left.ops > 0 for left in self._left.values())

    def learn(self, leaks: Iterable[Leak], *, noted_ops: int | None, may_have_grown: bool) -> None:
        """Learn from the leaks of one test.

        Args:
            leaks: its leaks.
            noted_ops: number of its ops whose lines were noted; None if lines were not noted.
            may_have_grown: True if it may have replaced a smaller tensor by a larger one.
        """
        if noted_ops is not None:
            self._left = {
                what: _Left(left.tests - 1, left.ops - noted_ops) for what, left in self._left.items()
            }
        if may_have_grown:
            self._left.setdefault(_GROWTH, _Left())
        for leak in leaks:
            if leak.site is None:
                self._left.setdefault(leak.cause, _Left())
            else:
                self._left[leak.cause] = _Left(0, 0)
            if leak.grows:
                self._left[_GROWTH] = _Left()

    def is_first_growth(self, leak: Leak) -> bool:
        """Return True for a tensor that became larger, as scratch memory may, if its cause is new."""
        if not leak.grows or leak.cause in self._grown:
            return False
        self._grown.add(leak.cause)
        self._left[_GROWTH] = _Left()
        return True


class FixtureGrowth:
    """Weak references to the storages that tests put into fixtures that outlive them."""

    def __init__(self) -> None:
        self._kept: dict[str, list[weakref.ref[Any]]] = {}

    def note(self, kept: Iterable[tuple[str, NewStorage]]) -> list[dict[str, Any]]:
        """Note what one test put into fixtures, and return it as plain data, one row for each fixture."""
        added: dict[str, list[NewStorage]] = {}
        for fixture, made in kept:
            added.setdefault(fixture, []).append(made)
        rows = []
        for fixture, storages in added.items():
            refs = [ref for ref in self._kept.get(fixture, []) if ref() is not None]
            self._kept[fixture] = refs = [*refs, *(made.ref for made in storages)]
            rows.append(
                {
                    "cause": fixture,
                    "holder": fixture,
                    "nbytes": sum(made.bytes_now() for made in storages),
                    "count": len(storages),
                    "entries": len(refs),
                    "process": os.getpid(),
                }
            )
        return rows


def lasting_fixtures(item: pytest.Item) -> dict[str, object]:
    """Return the values of the fixtures of a test that outlive it, by their descriptions."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    values: dict[str, object] = {}
    for name, definitions in known.items():
        for definition in definitions:
            cached = getattr(definition, "cached_result", None)
            if cached is not None and cached[2] is None and definition.scope != "function":
                values[FIXTURE.format(name=name, scope=definition.scope, place=definition.baseid)] = cached[0]
    return values


def _with_lines(leaks: Iterable[Leak], readings: Sequence[Reading]) -> list[Leak]:
    """Return leaks. Add the line to a leak if one line made all storages of its size."""
    return [leak if leak.site or leak.grows else _with_line(leak, readings) for leak in leaks]


def _with_line(leak: Leak, readings: Sequence[Reading]) -> Leak:
    from memwatch.words.leaks import site_phrase

    found = {lines for reading in readings for lines in _lines_of_size(leak, reading)}
    sites = {site for site, _ in found}
    site = sites.pop() if len(sites) == 1 else None
    if site is None:
        return leak
    callers = {caller for _, caller in found}
    caller = callers.pop() if len(callers) == 1 else None
    return replace(leak, site=site_phrase(*site), caller=None if caller is None else site_phrase(*caller))


def _lines_of_size(leak: Leak, reading: Reading) -> Iterator[Lines]:
    """Yield the lines of the storages that are as large as the leak's first one, and were not freed in the test."""
    storages = reading.storages
    made = (storages["birth_event"] >= 0) & (storages["device"] == leak.device)
    fitting = storages[made & (storages["nbytes"] == leak.first_bytes)]
    if leak.kind == "retained":  # the profile goes on while the search for leaks frees the rest
        fitting = fitting[fitting["death_event"] < 0]
    for stack in fitting["stack"].unique():
        yield _lines(reading.stack(int(stack)))


def _lines(frames: Sequence[Any]) -> Lines:
    """Return the line that made a storage and the line that called its function, without the runner's."""
    from memwatch.heap.frames import is_test_runner_code
    from memwatch.own_code import is_memwatch_code

    lines: list[Line] = [frame[:3] for frame in frames if frame[3] and not is_memwatch_code(frame[0])]
    callers = [line for line in lines[1:2] if not is_test_runner_code(line[0])]
    return lines[0] if lines else None, callers[0] if callers else None


def _has_backward(reading: Reading) -> bool:
    """Return True if any op of a backward was recorded."""
    from memwatch.capture.schema import BACKWARD

    return bool((reading.capture.tables["ops"]["phase"] == BACKWARD).any())
