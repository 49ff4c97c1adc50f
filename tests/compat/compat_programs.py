"""Every program of the compatibility matrix, for tests and reports that run them in another way."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class NamedProgram(NamedTuple):
    """A program of a file `test_compat_*.py`, with the arguments of its `compat_harness.unnoticed`."""

    name: str
    program: Any
    formula: str


def all_programs(pattern: str = "test_compat_*.py") -> Iterator[NamedProgram]:
    """Yield the programs that the files of this folder declare with `@unnoticed`.

    Args:
        pattern: which files; some need libraries.
    """
    for file in sorted(Path(__file__).parent.glob(pattern)):
        for name, value in list(vars(importlib.import_module(file.stem)).items()):
            if name.startswith("test_") and hasattr(value, "program"):
                yield NamedProgram(f"{file.stem}.{name}", value.program, value.formula)
