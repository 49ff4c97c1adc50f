"""Write readings to a dataset of Parquet files, for captures of many hosts.

Dask, DuckDB, Spark and pandas can read it.

Each table is a folder. It has one folder for each host, with one folder for each rank inside (Hive's layout), so a
reader loads only the ranks that it needs. Each process has its own file, and a new capture adds files to the
dataset.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.capture.schema import NONE
from memwatch.errors import MemwatchError
from memwatch.output_files import whole_file

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from memwatch.report.source import Reading

_ENGINE: Final = "pyarrow"


class DatasetError(MemwatchError):
    """The dataset cannot be written."""


def write_dataset(reading: Reading, folder: Path, *, force: bool = False) -> list[Path]:
    """Add a reading to a dataset.

    Args:
        reading: a profile.
        folder: the dataset; it is created if it does not exist.
        force: whether to replace files of the same process.

    Returns:
        The files written, one for each table.

    Raises:
        DatasetError: pyarrow is missing, a file exists already, or the folder cannot be written.
    """
    if importlib.util.find_spec(_ENGINE) is None:
        raise DatasetError("Parquet needs pyarrow, which is not installed: pip install 'memwatch[parquet]'")
    meta = reading.meta
    # a text of the file: it must not name other folders
    host = quote(str(meta.get("host", "unknown")), safe="")
    place = f"host={host}/rank={meta.get('rank', NONE)}"
    files = {name: folder / name / place / f"{meta.get('pid', 0)}.parquet" for name in DERIVED_BY_NAME}
    existing = [file for file in files.values() if file.exists()]
    if existing and not force:
        raise DatasetError(f"{existing[0]} exists; name another folder with -o, or replace it with -f")
    try:
        for name, file in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            frame: pd.DataFrame = getattr(reading, name)
            with whole_file(file, force=force) as part:
                frame.assign(pid=meta.get("pid", 0)).to_parquet(part, engine=_ENGINE, index=True)
    except OSError as error:
        raise DatasetError(f"cannot write the dataset {folder}: {error}; choose a writable place") from error
    return list(files.values())
