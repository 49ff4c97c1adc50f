"""Show whole captures of many ranks as one Parquet dataset, which a Dask LocalCluster and pandas read alike.

Writes reports/ranks_dataset.md: `python -P reports/ranks_dataset.py`, for a report has the name of a package of Dask.
It needs pyarrow and dask[dataframe,distributed].
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import time

import pandas as pd
import torch
from dask import dataframe
from dask.distributed import Client, LocalCluster
from torch import nn

import memwatch
from memwatch.report.export import write_dataset

HERE = pathlib.Path(__file__).parent
RANKS, RANKS_OF_HOST, STEPS = 16, 4, 40
QUERY = 'timeline.groupby(["host", "rank"])["live_bytes"].max()'


def record(rank: int, path: pathlib.Path) -> None:
    """Record the training of one rank, whose batch is its own."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile(path):
        for _ in range(STEPS):
            net(torch.randn(8 * (1 + rank), 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        paths = [folder / f"run.rank{rank}.memwatch" for rank in range(RANKS)]
        for rank, path in enumerate(paths):
            record(rank, path)
        begin = time.process_time()
        for rank, path in enumerate(paths):
            reading = memwatch.load(path)
            reading.meta["host"] = f"node{rank // RANKS_OF_HOST}"
            write_dataset(reading, folder / "dataset")
        seconds = time.process_time() - begin
        size = sum(file.stat().st_size for file in (folder / "dataset").rglob("*.parquet"))
        peaks = [memwatch.load(path).peak_bytes for path in paths]
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster),
        ):
            timeline = dataframe.read_parquet(
                folder / "dataset" / "timeline", columns=["live_bytes", "host", "rank"]
            )
            by_rank = timeline.groupby(["host", "rank"])["live_bytes"].max().compute()
            rows = len(timeline)
        found = {int(rank): int(nbytes) for (_, rank), nbytes in by_rank.dropna().items()}
        assert [found[rank] for rank in range(RANKS)] == peaks
        one = pd.read_parquet(folder / "dataset" / "timeline", filters=[("host", "==", "node1")])
        assert one["live_bytes"].max() == max(peaks[RANKS_OF_HOST : 2 * RANKS_OF_HOST])
    text = f"""# Captures of many ranks as one dataset

Written by `python -P reports/ranks_dataset.py`: {RANKS} ranks on {RANKS // RANKS_OF_HOST} hosts (made up),
{STEPS} steps each. `memwatch transform run.rankN.memwatch parquet -o dataset` adds each capture to the dataset.

| | |
| --- | --- |
| rows of the timeline | {rows:,} |
| bytes on disk, all tables | {size:,} |
| CPU s to write | {seconds:.1f} |
| peaks by `{QUERY}` on a Dask LocalCluster | equal to the readings, {RANKS} of {RANKS} |
| lowest and highest peak, B | {min(peaks):,} and {max(peaks):,} |
| ranks of one host by `pandas.read_parquet(..., filters=[("host", "==", "node1")])` | {one["rank"].nunique()} |
"""
    (HERE / "ranks_dataset.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
