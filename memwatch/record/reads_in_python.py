"""Find the lines that give the values of a tensor to Python.

`tensor.tolist()` and `tensor.numpy()` call no op, so no table has a row for them. The code of the functions that call
ops shows them.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from memwatch.own_code import is_program_code, line_at

if TYPE_CHECKING:
    from collections.abc import Iterable

_READS: Final = ("numpy", "tolist")


def reads_in_python(codes: Iterable[CodeType]) -> list[list[Any]]:
    """Return the lines of a program that call one of these methods.

    Args:
        codes: the functions that called ops.

    Returns:
        For each line the file, the function, the method, the line, and the first and last line of each outermost loop
        of the function, in a list of numbers.
    """
    found = []
    for code in codes:
        reads = _reads(code) if is_program_code(code.co_filename) else []
        if reads:
            function = getattr(code, "co_qualname", code.co_name)
            loops = [line for loop in _outermost_loops(code) for line in loop]
            found += [[code.co_filename, function, method, line, loops] for method, line in reads]
    return found


def _reads(code: CodeType) -> list[tuple[str, int]]:
    """Return the methods and lines of a function, with those of its comprehensions and lambdas."""
    within = (each for each in code.co_consts if isinstance(each, CodeType) and each.co_name.startswith("<"))
    found = [read for each in within for read in _reads(each)]
    if not set(_READS).isdisjoint(code.co_names):
        found += [
            (str(each.argval), line_at(code, each.offset))
            for each in dis.get_instructions(code)
            if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and each.argval in _READS
        ]
    return sorted(found, key=lambda read: read[1])


def _outermost_loops(code: CodeType) -> list[tuple[int, int]]:
    """Return the first and last line of each loop that lies in no other one: the code jumps back in it."""
    lines = {
        offset: line
        for start, end, line in code.co_lines()
        if line is not None
        for offset in range(start, end, 2)
    }
    jumps = [*dis.hasjrel, *dis.hasjabs]
    found: list[tuple[int, int]] = []
    for each in dis.get_instructions(code):
        if each.opcode in jumps and isinstance(each.argval, int) and each.argval <= each.offset:
            of_loop = [lines[at] for at in range(each.argval, each.offset + 2, 2) if at in lines]
            if of_loop:  # generated code may have no lines
                found.append((min(of_loop), max(of_loop)))
    return [
        loop
        for loop in sorted(set(found))
        if not any(other != loop and other[0] <= loop[0] and loop[1] <= other[1] for other in found)
    ]
