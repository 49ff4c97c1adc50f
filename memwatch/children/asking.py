"""Ask all processes that this one starts to record: by the environment, which they inherit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memwatch.job import CHILDREN, children_told, rank_in_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

_SITE: Final = Path(__file__).with_name("site")
_HOME: Final = Path(__file__).parents[2]
_PATH: Final = "PYTHONPATH"


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
