"""Draw one leak with graphviz's ``dot``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from os import PathLike

    from memwatch.leaks.leak import Leak


class DrawError(MemwatchError):
    """The picture of a leak could not be made."""


def to_dot(leak: Leak) -> str:
    """Return a leak as a graph in the DOT language."""
    lines = [
        "digraph leak {",
        "  rankdir=TB; node [shape=box, fontname=monospace]; edge [fontname=monospace];",
    ]
    targets = [line.rpartition(" -> ")[2].removesuffix("  [C++, unseen by gc]") for line in leak.path]
    lines.append(
        f"  n0 [label={_quoted('root' if leak.kind == 'retained' else targets[-1] if targets else '?')}];"
    )
    for place, (line, target) in enumerate(zip(leak.path, targets, strict=True), start=1):
        style = ", style=dashed" if line.endswith("[C++, unseen by gc]") else ""
        lines.append(f"  n{place} [label={_quoted(target)}];")
        lines.append(f"  n{place - 1} -> n{place} [label={_quoted(line.rpartition(' -> ')[0])}{style}];")
    return "\n".join([*lines, f"  label={_quoted(leak.headline())};", "}"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def draw_leak(leak: Leak, path: str | PathLike[str]) -> None:
    """Write the picture of a leak; see :meth:`memwatch.leaks.Leak.draw`."""
    target = Path(path)
    dot = shutil.which("dot")
    if dot is None:
        raise DrawError(
            f"cannot draw {target}: graphviz's program 'dot' is not installed (apt install graphviz, "
            f"brew install graphviz). The leak as text:\n{leak}"
        )
    kind = target.suffix.removeprefix(".") or "svg"
    done = subprocess.run(  # noqa: S603 - a program found on PATH, its input made here
        [dot, f"-T{kind}", "-o", str(target)], input=to_dot(leak), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise DrawError(f"cannot draw {target}: dot said {done.stderr.strip()!r}. The leak as text:\n{leak}")
