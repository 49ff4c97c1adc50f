"""The place of this process in a job of many: rank, host and parent, and the file names that are made of them.

`memwatch run --children` asks the processes that this one starts to record too (`ask_children`): by the environment,
which they inherit.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memwatch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

CHILDREN: Final = "MEMWATCH_CHILDREN"
"""The environment variable that carries `memwatch run --children` to the processes that the program starts."""
_TOLD_BY: Final = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI
)
_RESTART: Final = "TORCHELASTIC_RESTART_COUNT"
_PLACEHOLDERS: Final = ("{rank}", "{pid}")
"""The placeholders that make a file name different in each rank. `{host}` alone does not."""
_FIELDS: Final = (*_PLACEHOLDERS, "{host}")
_FIELD: Final = re.compile(r"\{\w*\}?")
_group_at_fork: Final[list[int | None]] = [None]
"""Identity of the process group that this process got by a fork: the process that it was forked from is the rank."""
_SITE: Final = Path(__file__).parent / "children" / "site"
_HOME: Final = Path(__file__).parents[1]
_PATH: Final = "PYTHONPATH"


@dataclass(frozen=True)
class JobPlace:
    """The place of this process in its job. A value is None if it is unknown.

    Attributes:
        rank: its number among the ranks.
        world_size: how many ranks there are.
        local_rank: its number among the ranks of its host.
        of_rank: the rank that started this process, if this process is not a rank itself.
        backend: the backend of the process group. `fake` if the other ranks are simulated.
        restart: how often torchrun has started all ranks again, because one failed.
    """

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    of_rank: int | None = None
    backend: str | None = None
    restart: int = 0

    @classmethod
    def here(cls) -> JobPlace:
        """Return the place from torch.distributed if it is initialised, or else from the environment."""
        rank, world_size, local_rank = _from_environment()
        restart = _number(_RESTART) or 0
        distributed = _initialised()
        if distributed is not None:
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
            if id(distributed.group.WORLD) == _group_at_fork[0]:
                return cls(of_rank=rank)
            backend = str(distributed.get_backend())
            return cls(rank, world_size, local_rank, backend=backend, restart=restart)
        # the variable is inherited: the parent is that rank
        if rank is not None and rank == _rank_of_parent():
            return cls(of_rank=rank)
        return cls(rank, world_size, local_rank, restart=restart)

    @property
    def is_one_of_many(self) -> bool:
        """Whether other ranks run the same program at the same time."""
        return self.rank is not None and (self.world_size or 1) > 1

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata for a capture, without unknown values."""
        told = {
            "host": socket.gethostname(),
            "parent_pid": os.getppid(),
            "rank": self.rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            "of_rank": self.of_rank,
            "process_group": self.backend,
            "restart": self.restart or None,
        }
        return {name: value for name, value in told.items() if value is not None}


def _initialised() -> Any:
    """Return torch.distributed where a process group is there, else None; it is not imported for that."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_there else None


def has_process_group() -> bool:
    """Return whether torch.distributed has a process group."""
    return _initialised() is not None


def note_fork() -> None:
    """Note in a process that was just forked which process group is not its own."""
    distributed = _initialised()
    _group_at_fork[0] = None if distributed is None else id(distributed.group.WORLD)


os.register_at_fork(after_in_child=note_fork)


def default_name(place: JobPlace, program: str) -> str:
    """Return the name of a program's file without its suffix, with placeholders for `named_for`."""
    return f"{program}.{'rank{rank}.' if place.is_one_of_many else ''}{{pid}}"


def named_for(place: JobPlace, path: str | os.PathLike[str]) -> Path:
    """Return the file of this process: placeholders are replaced, and a rank of many gets its number if there is none.

    If torchrun has started a rank again, its name includes this: the file without it has the recording from before.

    Args:
        place: the place of this process.
        path: a file, which may hold `{rank}`, `{pid}` and `{host}`.
    """
    text = os.fspath(path)
    is_told_apart = any(each in text for each in _PLACEHOLDERS)
    filled = Path(
        text.replace("{rank}", str(place.rank or 0))
        .replace("{pid}", str(os.getpid()))
        .replace("{host}", socket.gethostname())
    )
    if place.is_one_of_many and not is_told_apart:
        filled = filled.with_name(f"{filled.stem}.rank{place.rank}{filled.suffix}")
    if place.restart and "{pid}" not in text:
        filled = filled.with_name(f"{filled.stem}.restart{place.restart}{filled.suffix}")
    return filled


def require_known_fields(path: str | os.PathLike[str]) -> None:
    """Raise if the name of a file holds a field that `named_for` does not replace.

    Raises:
        OptionError: names the field.
    """
    name = os.path.basename(os.fspath(path))
    for field in _FIELDS:
        name = name.replace(field, "")
    unknown = _FIELD.search(name)
    if unknown is not None:
        raise OptionError(f"{os.fspath(path)} has the unknown field {unknown[0]}; use {', '.join(_FIELDS)}")


def program_name() -> str:
    """Return the name of the program for files: its script without `.py`, or its package."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name == "__main__.py":
        name = os.path.basename(os.path.dirname(sys.argv[0]))
    # "-": the script comes from standard input
    return "command" if name in ("", "-", "-c", "-m") else name.removesuffix(".py")


def children_told() -> dict[str, Any]:
    """Return the settings from a `memwatch run --children` above this process; empty without one."""
    try:
        told = json.loads(os.environ.get(CHILDREN, "{}"))
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _from_environment() -> tuple[int | None, int | None, int | None]:
    for names in _TOLD_BY:
        rank, world_size, local_rank = (_number(name) for name in names)
        if rank is not None and world_size is not None:
            return rank, world_size, local_rank
    return None, None, None


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _rank_of_parent() -> int | None:
    """Return the rank, in the environment, of the process that ran with `--children`; None in that process itself."""
    told = children_told()
    is_asker = told.get("pid") == os.getpid()
    rank = told.get("rank")
    return rank if isinstance(rank, int) and not is_asker else None


def rank_in_environment() -> int | None:
    """Return the rank from the environment, or None."""
    return _from_environment()[0]


def ask_children(capture: Path, options: Mapping[str, Any]) -> None:
    """Have children record beside this capture.

    Args:
        capture: the file of this process; children add their numbers to its name.
        options: how they shall record, as plain JSON values.
    """
    told = {
        "beside": str(capture.absolute()),
        "options": dict(options),
        "pid": os.getpid(),
        "rank": rank_in_environment(),
        "home": str(_HOME),
        "python": [sys.prefix, *sys.version_info[:2]],  # another Python has other packages
    }
    os.environ[CHILDREN] = json.dumps(told)
    others = [path for path in os.environ.get(_PATH, "").split(os.pathsep) if path and path != str(_SITE)]
    os.environ[_PATH] = os.pathsep.join([str(_SITE), *others])


def file_of_child() -> Path:
    """Return where this process records that another asked to: beside the capture of that, by its own number."""
    told = children_told()
    beside, rank = Path(told["beside"]), rank_in_environment()
    own_rank = f".rank{rank}" if rank is not None and rank != told["rank"] else ""
    return beside.with_name(f"{beside.stem}{own_rank}.{os.getpid()}{beside.suffix}")


def files_of_children(capture: Path) -> list[Path]:
    """Return the captures of children that lie beside this one."""
    stem = f"{capture.stem}."
    return sorted(
        path
        for path in capture.absolute().parent.iterdir()
        if path.name.startswith(stem) and path.suffix == capture.suffix and path.name != capture.name
    )
