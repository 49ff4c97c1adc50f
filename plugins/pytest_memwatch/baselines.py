"""Saved peaks: one JSON file per name in the project's folder `.memwatch`, to be committed or cached."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from memwatch.output_files import write_whole
from memwatch.plain_json import read_json

if TYPE_CHECKING:
    from pathlib import Path

FOLDER: Final = ".memwatch"
FORMAT: Final = "memwatch-baseline"
VERSION: Final = 1


@dataclass(frozen=True)
class Baseline:
    """The peaks of an earlier run.

    Attributes:
        name: as given to `--memwatch-save`.
        peaks: peak increase of each test by node id, bytes.
    """

    name: str
    peaks: dict[str, int]


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
    path = folder / f"{name}.json" if name else saved[-1]
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
    """
    path = root / FOLDER / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    peaks = {}
    if path.exists():
        try:
            peaks = _read(path)
        except pytest.UsageError:
            peaks = {}  # a damaged file is replaced
    for node, row in tests.items():
        if row["outcome"] == "passed" and "peak_increase_bytes" in row:
            peaks[node] = row["peak_increase_bytes"]
    rows = {node: {"peak_increase_bytes": peaks[node]} for node in sorted(peaks)}
    text = json.dumps({"format": FORMAT, "version": VERSION, "tests": rows}, indent=1)
    write_whole(path, text + "\n", force=True)
    return path
