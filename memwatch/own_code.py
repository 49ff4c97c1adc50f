"""Find the owner of a source file: the program, an installed package, torch, Python or memwatch.

The owner decides which line a report names, and whether the user can edit the code of a holder. It follows from the
real folders of Python and torch and from the setting `own_code`. It never follows from a word in a path, because a
program may keep its code in a folder named `torch`. The recorder finds the owner while the program runs and stores it,
so a capture that is read on another machine needs no paths.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import os
import site
import sys
import sysconfig
import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from memwatch.settings import own_code_folders
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType

_PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")

_COMPILED: Final = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable with the folder of code that torch's compiler writes; it sets that itself."""


_INSTALLED_LISTS: Final = ".dist-info"
_LIST: Final = "RECORD"
"""An installer's list of the files that it put beside it, in a folder of that ending."""
_BY_DATACLASSES: Final = "__create_fn__."
_OVERRIDES: Final = ("__torch_function__", "__torch_dispatch__")


class CodeOwner(IntEnum):
    """The owner of the code in a file; recorded tables store the number."""

    PROGRAM = 0
    """The user wrote it for this program; only this code can be edited to lower the peak."""
    INSTALLED = 1
    """A package in site-packages or dist-packages, or where an installer put it elsewhere on `sys.path`."""
    TORCH = 2
    PYTHON = 3
    """The standard library and frozen modules."""
    MEMWATCH = 4
    """memwatch and its pytest plugin."""

    @property
    def calls_torch(self) -> bool:
        """Whether an op is attributed to a line of this code: it calls torch and is not torch's own machinery."""
        return self <= CodeOwner.INSTALLED


_OWNER_OF_PACKAGE: Final = {"memwatch": CodeOwner.MEMWATCH, "torch": CodeOwner.TORCH}
"""The owners of commands that are neither the program's nor just any package's."""

_WITHOUT_FILE: Final = (
    ("<frozen", CodeOwner.PYTHON),
    ("<eval_with_key>", CodeOwner.TORCH),  # code that torch.fx and torch.compile write
)


@functools.cache
def code_owner(file: str) -> CodeOwner:
    """Return whose code a file is.

    Args:
        file: the name in a code object (`co_filename`), which may be no path, as `<stdin>`.
    """
    if file.startswith("<"):
        owners_of_made = (owner for start, owner in _WITHOUT_FILE if file.startswith(start))
        return next(owners_of_made, CodeOwner.PROGRAM)  # <stdin> and <string> are the program's
    # As spelled first: an installer may fill site-packages with links to files that lie in its cache.
    for path in dict.fromkeys((os.path.abspath(file), os.path.realpath(file))):
        owners = [(len(folder), owner) for folder, owner in _folders() if path.startswith(folder)]
        if owners:
            # the innermost folder decides: torch lies in site-packages, that in Python's
            return max(owners)[1]
        if _is_installed_elsewhere(path):
            return CodeOwner.INSTALLED
        if os.path.dirname(path) in _script_folders() and path in _launchers():
            return _launchers()[path]
    return CodeOwner.PROGRAM


def owner_of_function(code: CodeType) -> CodeOwner:
    """Return the owner of a function's code.

    Code that `dataclasses` writes has the file `<string>`, as with `python -c`.
    """
    if code.co_filename == "<string>" and _is_by_dataclasses(code):
        return CodeOwner.PYTHON
    return code_owner(code.co_filename)


def _is_by_dataclasses(code: CodeType) -> bool:
    qualname = getattr(code, "co_qualname", None)
    if qualname is None:  # Python 3.10, where the name of the method has to do
        return code.co_name == "__init__" and "-c" not in sys.orig_argv
    return bool(qualname.startswith(_BY_DATACLASSES))


def is_override(code: CodeType) -> bool:
    """Return True for a function that torch calls in place of an op. Its arguments belong to its caller."""
    return code.co_name in _OVERRIDES and code.co_argcount > 1


@functools.lru_cache(maxsize=4096)
def hands_on(code: CodeType, offset: int) -> bool:
    """Return True if a function that torch calls in place of an op is now running this op.

    Every op of such a class or mode runs on that line, so the line that tells a user more is its caller's.

    Args:
        code: the code of the function.
        offset: the offset of its current instruction, `frame.f_lasti`.
    """
    if not is_override(code):
        return False
    func, line = code.co_varnames[1], line_at(code, offset)
    return any(
        start <= each.offset < end and each.opname.startswith("LOAD_") and _names(each.argval, func)
        for start, end, number in code.co_lines()
        if number == line
        for each in dis.get_instructions(code)
    )


def _names(value: object, name: str) -> bool:
    """Return True if an instruction loads a variable, alone or, from Python 3.13 on, with another."""
    return value == name or (isinstance(value, tuple) and name in value)


def line_at(code: CodeType, offset: int) -> int:
    """Return the line of an instruction."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


class OwnThread(threading.Thread):
    """A thread of memwatch's own, which counts as none of the program's."""


def is_program_code(file: str) -> bool:
    """Return True for a file that the user wrote for this program."""
    return code_owner(file) is CodeOwner.PROGRAM


def is_memwatch_code(file: str) -> bool:
    """Return True for a file of memwatch or of its pytest plugin."""
    return code_owner(file) is CodeOwner.MEMWATCH


def _folders() -> list[tuple[str, CodeOwner]]:
    """Return the folders whose files have a known owner, each with a separator at its end."""
    on_path = (entry for entry in sys.path if os.path.basename(entry.rstrip(os.sep)) in _PACKAGE_FOLDERS)
    compiled = filter(None, [os.environ.get(_COMPILED)])
    return [
        *_fixed_folders(),
        *((folder, CodeOwner.INSTALLED) for folder in _spellings(on_path)),
        *((folder, CodeOwner.TORCH) for folder in _spellings(compiled)),
        *((folder, CodeOwner.PROGRAM) for folder in _spellings(own_code_folders())),
    ]


def _is_installed_elsewhere(path: str) -> bool:
    """Return True for a file or folder of an installed package, in a folder of `sys.path` that an installer filled.

    A program may lie beside the packages of `pip install --target`. The installer's own lists show which is which.
    """
    for entry in sys.path:
        folder = os.path.abspath(entry or os.curdir)
        for spelled in dict.fromkeys((folder, os.path.realpath(folder))):
            if path.startswith(spelled + os.sep):
                top = path[len(spelled) + 1 :].split(os.sep, 1)[0]
                if top in _tops_installed_in(spelled):
                    return True
    return False


@functools.cache
def _tops_installed_in(folder: str) -> frozenset[str]:
    """Return the names of the folders and files that an installer's lists say it put into a folder."""
    return frozenset(_file_of(row).split("/", 1)[0] for _, row in _rows_of_lists(folder))


@functools.cache
def _script_folders() -> frozenset[str]:
    """Return the folders into which an installer puts the commands of packages, such as `torchrun`."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    folders = [sysconfig.get_path("scripts", scheme) for scheme in schemes]
    return frozenset(path.rstrip(os.sep) for path in _spellings(folders))


@functools.cache
def _launchers() -> dict[str, CodeOwner]:
    """Return the files outside its folder that an installer's lists name, with their owner.

    Programs of the user may lie in a folder of commands too, such as /usr/local/bin: no list names them.
    """
    found: dict[str, CodeOwner] = {}
    for folder, owner in _fixed_folders():
        if owner is CodeOwner.INSTALLED:
            for package, row in _rows_of_lists(folder):
                if row.startswith(".."):
                    path = os.path.normpath(os.path.join(folder, _file_of(row)))
                    found[path] = _OWNER_OF_PACKAGE.get(package, CodeOwner.INSTALLED)
    return found


def _rows_of_lists(folder: str) -> Iterator[tuple[str, str]]:
    """Yield each row of the lists in a folder, with the package that it belongs to."""
    with suppress(OSError):  # a zip file, or a folder that is gone
        names = [name for name in os.listdir(folder) if name.endswith(_INSTALLED_LISTS)]
        for name in names:
            with (
                suppress(FileNotFoundError),  # distributions of Linux leave the list out
                open(os.path.join(folder, name, _LIST), encoding="utf-8", errors="replace") as rows,
            ):
                package = name.split("-", 1)[0]
                yield from ((package, row) for row in rows)


def _file_of(row: str) -> str:
    return row.split(",", 1)[0].strip('"')


@functools.cache
def _fixed_folders() -> list[tuple[str, CodeOwner]]:
    paths = sysconfig.get_paths()
    installed = [paths["purelib"], paths["platlib"], site.getusersitepackages(), *site.getsitepackages()]
    found = (
        (CodeOwner.PYTHON, [paths["stdlib"], paths["platstdlib"]]),
        (CodeOwner.INSTALLED, installed),
        (CodeOwner.TORCH, _folders_of("torch")),
        (CodeOwner.MEMWATCH, [os.path.dirname(__file__), *_folders_of("pytest_memwatch")]),
    )
    return [(folder, owner) for owner, folders in found for folder in _spellings(folders)]


def _folders_of(package: str) -> list[str]:
    """Return the folders of a package without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:  # another tool put a module without a spec into sys.modules
        pass_on(error)
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _spellings(folders: Iterable[str]) -> list[str]:
    """Return each folder as it is spelled and as it really is, both with a separator at the end."""
    paths = [path for folder in folders for path in (os.path.abspath(folder), os.path.realpath(folder))]
    return [path + os.sep for path in dict.fromkeys(paths)]
