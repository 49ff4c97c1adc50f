"""Run a program as `python` would: a script, a module after `-m`, or a command after `-c`.

The program sees the `sys.argv`, `sys.path[0]` and `__main__` that the interpreter would have given it. Its tracebacks
show no frames of memwatch.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import itertools
import os
import re
import sys
import zipfile
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from memwatch.cli.common import command_line, memwatch_command, say
from memwatch.errors import MemwatchError, linked_errors
from memwatch.own_code import CodeOwner, code_owner
from memwatch.settings import own_code_folders, project_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

PROGRAM_USAGE: Final = "[-m MODULE | -c COMMAND | SCRIPT] [ARGUMENT ...]"
_PAGE: Final = "--html="
_CAPTURE_SUFFIX: Final = ".memwatch"


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add `-m`, `-c`, and the program with its arguments."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-m", dest="module", action="store_true", help="the program is a module, found as by an import"
    )
    form.add_argument("-c", dest="command", action="store_true", help="the program is the text of a command")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")


def _hint_of_option(word: str, parser: argparse.ArgumentParser) -> str:
    """Return where the options of a verb are listed, and the option that was probably meant."""
    import difflib  # no other command needs it

    meant = next(iter(difflib.get_close_matches(word, parser._option_string_actions, 1)), None)
    return f"; {'' if meant is None else f'did you mean {meant}? '}`{parser.prog} --help` lists the options"


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line.

    `--html` takes a value only after `=`, because the next word may be the program. argparse has no such option:
    it would take the next word as the value. So argparse sees a flag, and the value is found here.
    """
    words = [_PAGE[:-1] if word.startswith(_PAGE) else word for word in argv]
    options, unknown = parser.parse_known_args(words)
    if unknown:  # the verb reports the error, because its usage lists its options
        are_captures = all(word.endswith(_CAPTURE_SUFFIX) for word in unknown)
        hint = "; this verb reads one capture, `memwatch diff` compares two" if are_captures else ""
        if unknown[0].startswith("-"):
            hint = _hint_of_option(unknown[0], options.usage_error.__self__)
        options.usage_error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if hasattr(options, "program"):
        first = len(argv) - len(options.program)
        options.program = list(argv[first:])
        pages = [word.removeprefix(_PAGE) for word in argv[:first] if word.startswith(_PAGE)]
        options.page = pages[-1] if pages else None
    return options


def chosen_program(options: argparse.Namespace) -> Program:
    """Return the program that was named; exit with a usage error if there is none.

    Raises:
        SettingsError: the settings of the project are wrong, which stops every verb that runs a program.
    """
    project_settings()
    own_code_folders()  # now, because the program may change the working directory
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not words:
        options.usage_error("name a program: SCRIPT, -m MODULE or -c COMMAND")
    if words[0].endswith(".html") and getattr(options, "html", False):
        options.usage_error(f"write --html={words[0]}, with an equals sign and no space")
    is_file = os.sep in words[0] or (words[0].endswith(".py") and os.path.isfile(words[0]))
    if options.module and is_file:
        options.usage_error(f"-m takes the name of a module, not a file: leave -m out to run {words[0]}")
    form: Form = "module" if options.module else "command" if options.command else "script"
    return Program(form, words[0], tuple(words[1:]))


def say_misplaced_option(options: argparse.Namespace, ended: object) -> None:
    """Print a hint if the program refused an option of memwatch that was written after the program's name.

    Args:
        options: the command line. Its usage has the verb's own options.
        ended: the exception that ended the program. argparse and click exit with 2 at an option they do not know.
    """
    if not isinstance(ended, SystemExit) or ended.code != 2:
        return
    usage = str(options.usage_error.__self__.format_usage())
    own = set(_OPTION.findall(usage.partition("[-m")[0]))  # the usage of the program follows
    misplaced = next((word for word in options.program[1:] if word.partition("=")[0] in own), None)
    if misplaced is not None:
        say(
            f"`{misplaced}` went to the program; if you mean memwatch's option, put it before the program's name"
        )


_OPTION: Final = re.compile(r"(?<![\w-])--?\w[\w-]*")
"""An option in a line of usage."""

Form = Literal["script", "module", "command"]


class ProgramError(MemwatchError):
    """The program cannot be found."""


@dataclass(frozen=True)
class Program:
    """The program to run: a script's path, a module's name or a command's text, and its arguments."""

    form: Form
    target: str
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A short name that can be part of a file name."""
        if self.form == "command":
            return "command"
        base = os.path.basename(os.path.abspath(self.target)) if self.form == "script" else self.target
        return base.removesuffix(".py").removesuffix(".pyz") or "program"

    def files(self) -> list[str]:
        """Return the files that hold the code of the program; nothing is imported for it.

        Modules that the program imports are not among them, nor are its arguments: those may be its outputs.
        """
        found: list[str] = []
        if self.form == "script":
            found += [self.target, os.path.join(self.target, "__main__.py")]
        elif self.form == "module":
            path = [os.getcwd(), *sys.path]
            for name in (*self.target.split("."), "__main__"):
                spec = PathFinder.find_spec(name, path)
                if spec is None:
                    break
                found += [] if spec.origin is None else [spec.origin]
                if spec.submodule_search_locations is None:
                    break
                path = list(spec.submodule_search_locations)
        return [name for name in found if "\0" not in name and os.path.isfile(name)]

    def load(self) -> Callable[[], None]:
        """Make this process look as if `python` had started it on the program, and return the program.

        Returns:
            A function that runs the program as `__main__`; exceptions of the program pass through it.

        Raises:
            ProgramError: the script or module does not exist, or it is not a program.
            SyntaxError: the program cannot be compiled.
        """
        load = {"script": self._load_script, "module": self._load_module, "command": self._load_command}
        code, names = load[self.form]()
        main = ModuleType("__main__")
        main.__dict__.update(__annotations__={}, __builtins__=builtins, **names)
        sys.modules["__main__"] = main

        def program() -> None:
            exec(code, main.__dict__)  # noqa: S102  # running the program is this verb's task

        return program

    def _load_command(self) -> tuple[CodeType, dict[str, Any]]:
        self._enter("-c", "")
        return compile(self.target, "<string>", "exec", dont_inherit=True), {"__loader__": BuiltinImporter}

    def _load_script(self) -> tuple[CodeType, dict[str, Any]]:
        path = os.path.join(os.getcwd(), self.target)  # as `python` does: not normalised
        source = self._source(path)
        if source is None:
            self._enter(self.target, path)
            return _load_spec(
                PathFinder.find_spec("__main__", [path]), f"no __main__ module in {self.target!r}"
            )
        self._enter(self.target, os.path.dirname(os.path.realpath(path)))
        code = compile(source, path, "exec", dont_inherit=True)
        return code, {"__file__": path, "__cached__": None, "__loader__": SourceFileLoader("__main__", path)}

    def check(self) -> None:
        """Check that a script can be read. A module can be found only when its packages are imported.

        Raises:
            ProgramError: the script does not exist, or it is not a program.
        """
        if self.form == "script":
            with contextlib.suppress(OSError):  # the run of the program raises it
                self._source(os.path.join(os.getcwd(), self.target))

    def _source(self, path: str) -> bytes | None:
        """Return the source of a script; None for a folder and for an archive, which hold a `__main__` module."""
        if path.endswith(_CAPTURE_SUFFIX):
            show = command_line(*memwatch_command(), "summary", self.target)
            raise ProgramError(
                f"{self.target!r} has the name of a capture, so it is not run; rename it if it is a program, or type "
                f"{show}"
            )
        if not os.path.exists(path):
            raise ProgramError(
                f"{self.target!r} is not a file; name a script, or use -m MODULE or -c COMMAND"
            )
        if os.path.isdir(path) or zipfile.is_zipfile(path):
            return None
        with io.open_code(path) as file:
            source = file.read()
        if b"\0" in source:
            raise ProgramError(
                f"{self.target!r} is not a Python program: it contains null bytes; "
                "to read a capture, use `memwatch summary` or `memwatch report`"
            )
        return source

    def _load_module(self) -> tuple[CodeType, dict[str, Any]]:
        self._enter("-m", os.getcwd())
        try:
            spec = find_spec(self.target)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = find_spec(f"{self.target}.__main__")
        except ModuleNotFoundError as error:
            if not f"{self.target}.".startswith(f"{error.name}."):
                raise  # a package of the program imports a module that is missing: the program's own error
            spec = None
        code, names = _load_spec(spec, f"no module named {self.target!r} that can be run")
        sys.argv[0] = names["__file__"]
        return code, names

    def _enter(self, name: str, folder: str) -> None:
        sys.argv[:] = [name, *self.arguments]
        if not getattr(sys.flags, "safe_path", False):  # `python -P` puts no folder in front of sys.path
            sys.path[0] = folder


def _load_spec(spec: ModuleSpec | None, missing: str) -> tuple[CodeType, dict[str, Any]]:
    loader: Any = None if spec is None else spec.loader
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise ProgramError(f"{missing}; name a script, or use -m MODULE or -c COMMAND")
    return code, {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }


_HOME: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_AROUND: Final = tuple(os.path.join(_HOME, part, "") for part in ("cli", "record"))
"""Folders of memwatch whose code runs around and between the program's. Code of memwatch that the program itself
calls is in other folders and stays in the traceback."""
_AT_OPS: Final = tuple(
    os.path.join(_HOME, "leaks", name) for name in ("program_growth.py", "new_storages.py")
)
"""Code of memwatch that torch calls at each op or step. An interrupt may come while it runs."""


def hide_own_frames(error: BaseException) -> BaseException:
    """Remove memwatch's frames from the traceback that is printed when the process ends with this error.

    Args:
        error: the exception of the program. Frames that are added when it is raised again are hidden too.

    Returns:
        The same error.
    """
    for link in linked_errors(error):
        link.__traceback__ = _programs_own(
            link.__traceback__, is_interrupt=isinstance(link, KeyboardInterrupt)
        )
    shown, previous = error.__traceback__, sys.excepthook

    # raising the error again adds frames to its traceback; the hook prints the traceback that was cleaned here
    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        trace = shown if value is error else trace
        previous(kind, value.with_traceback(trace), trace)

    sys.excepthook = excepthook
    return error


def _programs_own(trace: TracebackType | None, *, is_interrupt: bool) -> TracebackType | None:
    """Return a copy of a traceback without memwatch's frames, those before the program included.

    An interrupt came from outside, so the code of memwatch that happened to run is left out too.
    """
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    shown = [each for each in frames if not _is_in(each, _AROUND)]
    # drop the frames before the program: the part of memwatch that started it
    after_start = list(itertools.dropwhile(lambda each: _is_in(each, _HOME), shown))
    if not after_start and frames and not _is_in(frames[-1], _AROUND):
        # an error of memwatch's own; if the traceback ends in `cli`, the program does not compile
        after_start = shown
    elif is_interrupt:
        after_start = list(_without_calls_at_ops(after_start))
    kept: TracebackType | None = None
    for each in reversed(after_start):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _without_calls_at_ops(frames: Iterable[TracebackType]) -> Iterator[TracebackType]:
    """Yield the frames except those of memwatch's work at an op or a step, and of the code that this work calls.

    Frames of torch and of the program stay: the mode that sees an op also runs it, and the op may run such code.
    """
    is_own = False
    for each in frames:
        owner = code_owner(each.tb_frame.f_code.co_filename)
        is_own = _is_in(each, _AT_OPS) or (is_own and owner not in (CodeOwner.PROGRAM, CodeOwner.TORCH))
        if not is_own:
            yield each


def _is_in(trace: TracebackType, folders: str | tuple[str, ...]) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(folders)
