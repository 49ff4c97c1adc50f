"""If an installed package does the work, the program's own line is reported beside the package's."""

from __future__ import annotations

import importlib.util
import sys
import textwrap

import pytest
import torch
from torch import nn

import memwatch

LIBRARY = """
    import torch
    from torch import nn

    class Trainer:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.Adam(model.parameters(), foreach=True)

        def fit(self, batches):
            for batch in batches:
                self.step(batch)

        def step(self, batch):
            self.model.training_step(batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)

    def widened(x):
        kept = torch.cat([x] * 64)
        return kept.sum() + (kept * 2).sum()
"""


class Model(nn.Module):
    """Leave the training to a library, which calls `training_step` alone."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12)))

    def training_step(self, x):
        return self.net(x).sum()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module whose file lies in a site-packages folder."""
    folder = tmp_path / "site-packages" / "trainers"
    folder.mkdir(parents=True)
    (folder / "loop.py").write_text(textwrap.dedent(LIBRARY))
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder.parent)])
    spec = importlib.util.spec_from_file_location("trainers.loop", folder / "loop.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trained(library):
    trainer = library.Trainer(Model())
    batches = [torch.ones(4, 64)] * 3
    with memwatch.profile() as prof:
        trainer.fit(batches)  # this line
    return prof


def this_line():
    with open(__file__) as file:
        return f"{__file__}:{next(at for at, text in enumerate(file, 1) if '# this line' in text)}"


def test_both_lines_of_an_op_are_told(trained):
    """The optimizer's ops run in the library, on behalf of one line of the program."""
    steps = trained.ops[trained.ops["phase"] == "optimizer"]
    assert set(steps["own_line"]) == {this_line()}
    assert all("loop.py" in line for line in steps["line"])
    forward = trained.ops[trained.ops["name"] == "aten.addmm.default"]
    assert (forward["own_line"] == forward["line"]).all()  # in the program's own training_step
    state = trained.at_peak[trained.at_peak["category"] == "optimizer state"]
    assert set(state["own_line"]) <= {this_line(), ""}


def test_the_summary_shows_the_own_line_first(trained):
    """A reader finds the line to edit, and the library that does the work."""
    assert f"{this_line().rpartition('/')[2]}, in trainers (loop.py:" in trained.summary(width=200)


def test_a_parent_is_found_through_the_callers_of_a_library(trained):
    """A library calls the model. Its name is the program's variable."""
    assert {"net.0", "net.2"} <= set(trained.at_peak["module"])


def test_findings_are_about_the_own_line(trained):
    """The user's choices, such as the optimizer, are reported at the user's line. No finding names the library."""
    assert [(finding.kind, finding.site) for finding in trained.findings] == [("optimizer", this_line())]


def test_what_only_a_library_could_mend_is_no_finding(library):
    """The program cannot delete a variable of the library that keeps too much."""
    with memwatch.profile() as prof:
        library.widened(torch.ones(256, 64))
    assert list(prof.findings) == []
