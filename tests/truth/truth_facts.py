"""The words for the facts that a program declares about the memory at its peak.

A program is one function, written as users write it: it opens `memwatch.profile()` itself. Every important tensor has
a size of its own, which identifies it, and a mark `# peak: name` is on the line that makes it. The facts follow from
reading the program, never from memwatch's output.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import memwatch

SAVED = r"saved by (?!(rand|zeros|ones|empty|arange|full))"
"""autograd's graph holds it, for an op that has a backward."""
RESULT = r"the running op"
UNNAMED = rf"evaluation stack|unnamed value|no variable names|call into C\+\+ that runs|{RESULT}"
CPP = r"C\+\+, and Python shows no reference to it"
"""A graph of autograd, a wrapper of torch.func or another library has it, and only its counts of references tell."""
GRADIENT = rf"gradient in flight|call into C\+\+ that runs|{RESULT}"
"""A value that only the running backward has."""
GRAD = r"` \.grad"
KERNEL = r"the kernel of"
STEP = rf"within the optimizer's step|{UNNAMED}|local variable of `_(single|multi)"
LIBRARY = "a line of an installed package"
"""A mark for memory that a library's own line makes."""
ANY = 0
"""For a size, where many pieces of all sizes have one truth."""


def f32(*shape: int) -> int:
    """Return the bytes of a tensor of four-byte numbers."""
    return 4 * math.prod(shape)


def var(expression: str, *functions: str) -> str:
    """Return a pattern for a variable of one of some running functions, or for an expression that begins with it."""
    owners = "|".join(map(re.escape, functions)) or r"[^`]*"
    return rf"`{re.escape(expression)}`, (local variable|argument) of `([^`]*\.)?({owners})`"


def of_module(name: str) -> str:
    """Return a pattern for a global variable."""
    return rf"global `{re.escape(name)}`"


@dataclass(frozen=True)
class Fact:
    """A fact about the pieces of memory of one size that are alive at the peak.

    Attributes:
        nbytes: the size, which is different from all others, or ANY.
        category: their purpose; alternatives are separated by `|`.
        mark: the mark of the line that makes them; alternatives are separated by `|`; "" without a line.
        holder: a pattern for everything that holds them at the peak.
        module: the path of the module that makes them, without its root's name; "" outside of modules.
        op: a pattern for the op that makes them, if several have one size.
        most: the largest number of them; 0 for any number.
        only: whether only the modules' own parameters and buffers share this size at the peak.
    """

    nbytes: int
    category: str
    mark: str
    holder: str
    module: str = ""
    op: str = ""
    most: int = 0
    only: bool = False


@dataclass(frozen=True)
class Ran:
    """A program that has run: its profile, and the modules that live all the time.

    Attributes:
        prof: the profile.
        nets: the modules that live all the time, by the variable that holds them.
        increase_bytes: the true peak increase, where the program says it.
    """

    prof: memwatch.Profile
    nets: dict[str, object] = field(default_factory=dict)
    increase_bytes: int | None = None


@dataclass(frozen=True)
class Pattern:
    """A program with the facts about its peak."""

    run: Callable[[], Ran]
    facts: tuple[Fact, ...]

    @property
    def file(self) -> str:
        """The source file with the marks."""
        return inspect.getsourcefile(self.run)

    def is_marked(self, line: str, marks: str) -> bool:
        """Return True if `file:line` is a line with one of the marks; "" is the mark of no line."""
        if LIBRARY in marks.split("|") and "site-packages" in line:
            return True
        return any(
            line == f"{self.file}:{number}" if mark else not line
            for mark in marks.split("|")
            for number in (lines_with_marks(self.file).get(mark, ()) if mark else (0,))
        )


PATTERNS: dict[str, Pattern] = {}


def pattern(*facts: Fact):
    """Register a program with the facts about its peak."""

    def register(run):
        PATTERNS[run.__name__] = Pattern(run, facts)
        return run

    return register


@functools.cache
def lines_with_marks(file: str) -> dict[str, list[int]]:
    """Return the numbers of the lines with each mark of a source file."""
    found: dict[str, list[int]] = {}
    for number, text in enumerate(Path(file).read_text().splitlines(), 1):
        for mark in re.findall(r"# peak: ([^#]+)", text):
            found.setdefault(mark.strip(), []).append(number)
    return found
