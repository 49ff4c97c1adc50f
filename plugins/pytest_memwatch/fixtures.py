"""The fixtures `memwatch` and `no_tensor_leaks`."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from memwatch.text import read_json
from pytest_memwatch.options import FIXTURE_ASKED, SETTINGS
from pytest_memwatch.outcome import FixtureError
from pytest_memwatch.outputs import write_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from memwatch.profile import Profile


class Memwatch:
    """Measures and checks parts of a test; the value of the fixture `memwatch`."""

    def __init__(
        self, *, enabled: bool, warmup: int, runs: int | None, extra_info: dict[str, Any] | None = None
    ) -> None:
        self._profiles: list[Profile] = []
        self._extra_info = extra_info
        self._enabled = enabled
        self._warmup = warmup
        self._runs = runs

    @contextmanager
    def profile(self, **options: Any) -> Iterator[Profile]:
        """Profile a block of the test; the options are those of `memwatch.profile`.

        If the test also uses the fixture `benchmark` of pytest-benchmark, its `extra_info` gets the highest peak of
        the blocks so far.
        """
        import memwatch

        profile = memwatch.profile(**options)
        try:
            with profile:
                yield profile
        finally:
            self._profiles.append(profile)
        if self._extra_info is not None:
            highest = self._highest()
            self._extra_info |= {
                "memwatch_device": highest.device,
                "memwatch_peak_bytes": highest.peak_bytes,
                "memwatch_peak_increase_bytes": self.peak_increase_bytes,
            }

    def assert_no_leaks(
        self,
        fn: Callable[..., Any] | None = None,
        *args: Any,
        warmup: int | None = None,
        runs: int | None = None,
        **kwargs: Any,
    ) -> AbstractContextManager[object]:
        """Fail the test if a function, or a block, leaves tensors behind.

        Args:
            fn: called with the other arguments, as by `memwatch.find_leaks`; tensors that the runs add are a leak.
                Without it, use the result as a context manager: tensors that its block leaves are a leak.
            *args: arguments of `fn`.
            warmup: runs before measuring; by default `--memwatch-warmup`.
            runs: measured runs; by default `--memwatch-runs`, else "auto".
            **kwargs: keyword arguments of `fn`.

        Raises:
            TensorLeakError: something leaked.
        """
        from contextlib import nullcontext

        if fn is None:
            from memwatch.leaks import check_leaks

            return check_leaks() if self._enabled else nullcontext()
        if not self._enabled:
            fn(*args, **kwargs)
            return nullcontext()
        from memwatch.leaks import TensorLeakError, find_leaks

        warmup = self._warmup if warmup is None else warmup
        leaks = find_leaks(fn, *args, warmup=warmup, runs=runs or self._runs or "auto", **kwargs)
        if leaks:
            raise TensorLeakError(leaks)
        return nullcontext()

    @property
    def peak_bytes(self) -> int:
        """The highest peak of the `profile()` blocks so far, bytes."""
        return self._highest().peak_bytes

    @property
    def peak_increase_bytes(self) -> int:
        """The highest peak increase of the `profile()` blocks so far, bytes."""
        return max(profile.peak_increase_bytes for profile in self._known())

    def _highest(self) -> Profile:
        return max(self._known(), key=lambda profile: profile.peak_bytes)

    def _known(self) -> list[Profile]:
        if not self._profiles:
            raise FixtureError(
                "nothing has been measured yet; open a block with `with memwatch.profile():` first"
            )
        return self._profiles


@pytest.fixture(name="memwatch")
def memwatch_fixture(request: pytest.FixtureRequest) -> Memwatch:
    """Measure or check parts of the test: .profile(), .assert_no_leaks(), .peak_bytes."""
    settings = request.config.stash[SETTINGS]
    return Memwatch(
        enabled=settings.enabled,
        warmup=settings.warmup,
        runs=settings.runs,
        extra_info=_extra_info(request),
    )


def _extra_info(request: pytest.FixtureRequest) -> dict[str, Any] | None:
    """Return the dictionary that pytest-benchmark saves with the times of the test, if the test uses it."""
    if "benchmark" not in request.fixturenames:
        return None
    extra_info = getattr(request.getfixturevalue("benchmark"), "extra_info", None)
    return extra_info if isinstance(extra_info, dict) else None


@pytest.fixture
def no_tensor_leaks(request: pytest.FixtureRequest) -> None:
    """Check the test for leaks, like the marker of the same name with its defaults."""
    request.node.stash[FIXTURE_ASKED] = True


FOLDER: Final = ".memwatch"
FORMAT: Final = "memwatch-baseline"
VERSION: Final = 1  # of the format of a baseline


@dataclass(frozen=True)
class Baseline:
    """The peaks of an earlier run.

    Attributes:
        name: as given to `--memwatch-save`.
        peaks: peak increase of each test by node id, bytes.
    """

    name: str
    peaks: dict[str, int]


def baseline_path(root: Path, name: str) -> Path:
    """Return the file of a baseline in the project's folder."""
    return root / FOLDER / f"{name}.json"


def load_baseline(root: Path, name: str) -> Baseline:
    """Return a saved baseline.

    Args:
        root: the project's folder.
        name: its name; "" for the latest one.

    Raises:
        pytest.UsageError: the baseline does not exist, or its file is not a baseline.
    """
    folder = root / FOLDER
    saved = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    if not saved:
        raise pytest.UsageError(
            f"--memwatch-compare: no baseline in {folder}; make one with --memwatch-save=NAME"
        )
    path = baseline_path(root, name) if name else saved[-1]
    if path not in saved:
        names = ", ".join(sorted(known.stem for known in saved))
        raise pytest.UsageError(
            f"--memwatch-compare={name}: no such baseline in {folder}; there are: {names}. "
            "(To compare with the latest, write the option without a name as the last argument.)"
        )
    return Baseline(path.stem, _read(path))


def _read(path: Path) -> dict[str, int]:
    try:
        data = read_json(path.read_bytes())
        if data["format"] != FORMAT or data["version"] > VERSION:
            raise ValueError("another format or a newer version")
        return {str(node): int(row["peak_increase_bytes"]) for node, row in data["tests"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise pytest.UsageError(
            f"--memwatch-compare: {path} is not a baseline ({error}); save it again"
        ) from error


def save_baseline(root: Path, name: str, tests: dict[str, dict[str, Any]]) -> Path:
    """Write the peaks of passing tests and return the file; tests that did not run now keep their earlier peaks.

    Args:
        root: the project's folder.
        name: the baseline's name.
        tests: results by node id.

    Raises:
        OutputError: the file cannot be written.
    """
    path = baseline_path(root, name)
    peaks = {}
    if path.exists():
        try:
            peaks = _read(path)
        except pytest.UsageError:
            peaks = {}  # `write_output` replaces a damaged baseline, but no other file
    for node, row in tests.items():
        if row["outcome"] == "passed" and "peak_increase_bytes" in row:
            peaks[node] = row["peak_increase_bytes"]
    rows = {node: {"peak_increase_bytes": peaks[node]} for node in sorted(peaks)}
    text = json.dumps({"format": FORMAT, "version": VERSION, "tests": rows}, indent=1)
    write_output(path, text + "\n", FORMAT)
    return path
