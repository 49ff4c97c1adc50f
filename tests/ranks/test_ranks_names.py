"""The place of a process in its job, and the files that are named by it."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from memwatch import job
from memwatch.job import CHILDREN, JobPlace, named_for, program_name

LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


@pytest.mark.parametrize("names", LAUNCHERS)
def test_a_launcher_tells_the_place(names, monkeypatch):
    """Both torchrun and mpirun tell it in the environment."""
    for name, value in zip(names, ("3", "8", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert JobPlace.here() == JobPlace(3, 8, 1)


def test_without_a_launcher_there_is_no_rank(monkeypatch):
    """A single process has no rank. The same holds for a process with odd variables."""
    monkeypatch.delenv("RANK", raising=False)
    assert not JobPlace.here().is_one_of_many
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert JobPlace.here() == JobPlace()


def test_a_process_that_a_rank_started_is_no_rank(monkeypatch):
    """A DataLoader worker inherits RANK. It is reported as belonging to the rank."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv(CHILDREN, json.dumps({"rank": 3, "pid": os.getpid() + 1}))
    assert JobPlace.here() == JobPlace(of_rank=3)
    monkeypatch.setenv("RANK", "4")  # another launcher under this one
    assert JobPlace.here() == JobPlace(4, 8)


def test_a_fork_of_a_rank_is_no_rank(monkeypatch):
    """A worker that a rank forks finds the process group of the rank; a group that it makes is its own."""
    told = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 4,
        get_backend=lambda: "gloo", group=SimpleNamespace(WORLD=object()),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch.distributed", told)
    monkeypatch.setattr(job, "_group_at_fork", [None])
    assert JobPlace.here() == JobPlace(2, 4, backend="gloo")
    job.note_fork()
    assert JobPlace.here() == JobPlace(of_rank=2)
    told.group = SimpleNamespace(WORLD=object())
    assert JobPlace.here() == JobPlace(2, 4, backend="gloo")


@pytest.mark.parametrize(
    ("path", "place", "file"),
    [
        ("x.memwatch", JobPlace(1, 2), "x.rank1.memwatch"),
        ("x.memwatch", JobPlace(0, 1), "x.memwatch"),
        ("x.memwatch", JobPlace(), "x.memwatch"),
        ("x-{rank}.memwatch", JobPlace(1, 2), "x-1.memwatch"),
        ("x-{rank}.memwatch", JobPlace(), "x-0.memwatch"),
        ("{host}.{pid}.memwatch", JobPlace(1, 2), "HOST.PID.memwatch"),
        ("{host}.memwatch", JobPlace(1, 2), "HOST.rank1.memwatch"),
        ("{other}.memwatch", JobPlace(), "{other}.memwatch"),
        ("x.memwatch", JobPlace(1, 2, restart=1), "x.rank1.restart1.memwatch"),
        ("x-{rank}.memwatch", JobPlace(1, 2, restart=2), "x-1.restart2.memwatch"),
        ("x.memwatch", JobPlace(0, 1, restart=1), "x.restart1.memwatch"),
        ("{pid}.memwatch", JobPlace(1, 2, restart=1), "PID.memwatch"),
    ],
)
def test_no_two_ranks_write_one_file(path, place, file):
    """Placeholders are replaced; a rank of many gets its number where none of them tells it apart, and its restart."""
    here = file.replace("HOST", socket.gethostname()).replace("PID", str(os.getpid()))
    assert named_for(place, path) == Path(here)


@pytest.mark.parametrize("argument", ["", "-", "-c", "-m"])
def test_a_program_without_a_file_has_a_name_that_is_no_option(argument, monkeypatch):
    monkeypatch.setattr("sys.argv", [argument])
    assert program_name() == "command"
