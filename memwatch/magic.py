"""The magic of IPython that profiles a cell: `%load_ext memwatch`, then `%%memwatch` as a cell's first line."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from memwatch.errors import MemwatchError
from memwatch.profile import profile


class MagicUsageError(MemwatchError):
    """The line of the magic has an argument that it does not take."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise MagicUsageError(f"%%memwatch: {message}; {self.format_usage().strip()}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%memwatch", add_help=False, allow_abbrev=False)
    parser.add_argument("name", nargs="?", default="prof")
    parser.add_argument("--replay", action="store_true")
    return parser


def register(shell: Any) -> None:
    """Add the magic to a shell of IPython."""

    def memwatch(line: str, cell: str) -> Any:
        r"""Profile the cell and show what its peak is made of.

        Usage: `%%memwatch [NAME] [--replay]`. The profile is the variable NAME afterwards, `prof` by default; with
        `--replay` it can be planned. A cell that raises shows its error, then the recording up to it.
        """
        options = _parser().parse_args(shlex.split(line))
        if not options.name.isidentifier():
            raise MagicUsageError(
                f"%%memwatch: {options.name!r} is not a valid variable name; write for example: %%memwatch prof"
            )
        with profile(replay=options.replay) as recorded:
            _run_cell(shell, cell)
        shell.user_ns[options.name] = recorded
        return recorded

    shell.register_magic_function(memwatch, magic_kind="cell")


def _run_cell(shell: Any, cell: str) -> None:
    """Run the body of a cell. Its lines are counted from the line of the magic. IPython shows its error."""
    has_magic = cell.startswith("%%")
    text = cell if has_magic else f"# %%memwatch\n{cell}"
    if not has_magic and cell.rstrip().endswith(";"):
        text += "\nNone"  # IPython searches for the `;` in the whole cell, and does not find one at its end
    shell.run_cell(text)
    # IPython counted the whole cell already, so it took the body for the next one
    shell.compile.cache(shell.transform_cell(text), shell.displayhook.prompt_count, raw_code=text)
