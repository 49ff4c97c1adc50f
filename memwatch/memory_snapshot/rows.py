"""Rows of a capture's tables while a snapshot is read: interned text, interned call stacks."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.capture.schema import NONE, RECORDED_BY_NAME
from memwatch.memory_snapshot.errors import SnapshotError
from memwatch.memory_snapshot.fields import dicts, integer, text
from memwatch.own_code import CodeOwner, code_owner

if TYPE_CHECKING:
    from memwatch.capture.packed import IntArray

MOST_FRAMES: Final = 1 << 24
"""Frames of all call stacks together: more are refused."""
_LONGEST_PATH: Final = 4096
_NO_FILE: Final = "none"
_OF_PROFILER: Final = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<name>.+)", re.DOTALL)
"""How torch.profiler names a Python call, where the frame has no file: `train.py(12): step`."""
_PYTHON: Final = re.compile(r"python\d[\d.]*|python")

_Frame = tuple[int, int, int, int]


class Rows:
    """The rows of each table, flat; text and call stacks by number."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._texts: dict[str, int] = {}
        self._frames: dict[int, _Frame] = {}
        self._stacks: dict[tuple[_Frame, ...], int] = {}
        self._stack_of_list: dict[int, int] = {}
        self._frame_count = 0
        self._storages = 0

    def next_storage(self) -> int:
        """Return a new storage number."""
        self._storages += 1
        return self._storages - 1

    def add(self, table: str, *values: int) -> None:
        """Append a row."""
        self._rows.setdefault(table, []).extend(values)

    def text(self, value: str) -> int:
        """Return the number of a text."""
        return self._texts.setdefault(value, len(self._texts))

    def optional_text(self, value: str) -> int:
        """Return the number of a text, -1 for empty text."""
        return self.text(value) if value else NONE

    @property
    def texts(self) -> list[str]:
        """The texts by number."""
        return list(self._texts)

    def columns(self) -> dict[str, list[IntArray]]:
        """Return the tables as columns, for `Capture.from_columns`."""
        shaped = {
            name: np.array(flat, dtype=np.int64).reshape(-1, len(RECORDED_BY_NAME[name].columns))
            for name, flat in self._rows.items()
        }
        return {name: list(table.T) for name, table in shaped.items()}

    def stack(self, frames: object) -> int:
        """Return the number of a call stack, -1 where there is none.

        Args:
            frames: the list of frames, innermost first. A snapshot has one list for many entries, so lists are known
                by identity: the snapshot must live as long as this object.
        """
        if not frames:
            return NONE
        number = self._stack_of_list.get(id(frames))
        if number is None:
            found = tuple(self._frame(frame) for frame in dicts(frames, "frames"))
            number = self._stacks.get(found, NONE)
            if number == NONE:
                number = self._new_stack(found)
            self._stack_of_list[id(frames)] = number
        return number

    def _new_stack(self, frames: tuple[_Frame, ...]) -> int:
        number = self._stacks[frames] = len(self._stacks)
        self._frame_count += len(frames)
        if self._frame_count > MOST_FRAMES:
            raise SnapshotError(
                f"its call stacks have more than {MOST_FRAMES:,} frames; record fewer entries"
            )
        for depth, frame in enumerate(frames):
            self.add("stacks", number, depth, *frame)
        return number

    def _frame(self, frame: dict[str, Any]) -> _Frame:
        known = self._frames.get(id(frame))
        if known is None:
            file, line, name = (
                text(frame, "filename"),
                integer(frame, "line", otherwise=0),
                text(frame, "name"),
            )
            told = _OF_PROFILER.fullmatch(name) if file == _NO_FILE else None
            if told is not None:
                file, line, name = told["file"], int(told["line"]), told["name"]
            known = (self.text(file), line, self.text(name), int(owner_of(file)))
            self._frames[id(frame)] = known
        return known


def owner_of(file: str) -> CodeOwner:
    """Return whose code a file is; the folders of the machine that wrote the snapshot are told by their names.

    Args:
        file: a Python file, or what C++ frames have in its place.
    """
    here = _owner_here(file)
    if here is not CodeOwner.PROGRAM or file.startswith("<"):
        return here
    path = PurePosixPath(file.replace("\\", "/"))
    if path.suffix not in (".py", ".pyw", ".ipynb"):
        return CodeOwner.TORCH  # C++, or a builtin
    for at, part in enumerate(path.parts[:-1]):
        if part in ("site-packages", "dist-packages"):
            return CodeOwner.TORCH if path.parts[at + 1] == "torch" else CodeOwner.INSTALLED
    in_lib = any(
        outer.startswith("lib") and _PYTHON.fullmatch(inner)
        for outer, inner in zip(path.parts, path.parts[1:-1], strict=False)
    )
    return CodeOwner.PYTHON if in_lib else CodeOwner.PROGRAM


def _owner_here(file: str) -> CodeOwner:
    """Return whose code a file of this machine is; the program's, if its name is no path of this machine."""
    try:
        return code_owner(file) if len(file) <= _LONGEST_PATH else CodeOwner.PROGRAM
    except (OSError, ValueError):
        return CodeOwner.PROGRAM
