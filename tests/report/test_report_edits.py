"""The lines that the page shows for a finding: the program's own, and a change that does what the finding says."""

from __future__ import annotations

import importlib.util
import textwrap
from types import SimpleNamespace

import pytest

from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.kinds.findings import FindingKind
from memwatch.report.page.edits import ADDED, KEPT, REMOVED, calls_of_backward, edit_of
from memwatch.report.page.model import page_model
from memwatch.report.page.parts import CodeReader

LIST = """
    import torch
    from torch import nn

    import memwatch

    def run():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outputs = []
        with memwatch.profile() as prof:
            for _ in range(6):
                x = torch.ones(512, 64)
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                outputs.append(model(x).sum())
                prof.step()
        return prof, outputs
"""
SUM = LIST.replace("outputs = []", "outputs = 0.0").replace(
    "outputs.append(model(x).sum())", "outputs += model(x).sum()"
)
ZEROS = """
    import torch
    from torch import nn

    import memwatch

    def run():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with memwatch.profile() as prof:
            for _ in range(4):
                x = torch.ones(128, 64)
                loss = model(x).sum()
                optimizer.zero_grad(set_to_none=False)
                loss.backward()
                optimizer.step()
                prof.step()
        return prof, None
"""
VARIABLE = """
    import torch

    import memwatch

    def run():
        with memwatch.profile() as prof:
            first = torch.ones(512, 512)
            total = first.sum()
            second = torch.ones(512, 512)
            third = second * 2
            total = total + third.sum()
        return prof, total
"""


def run(source, tmp_path, name):
    """Write a program and run it; return its profile and its file."""
    file = tmp_path / f"{name}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(f"edited_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reading, _kept = module.run()
    return reading, file


def shown(edit):
    return [(line["sign"], line["text"].strip()) for line in edit["lines"]]


def applied(source, edit):
    """Return the source after an edit."""
    lines = source.splitlines()
    first = int(edit["site"].rpartition(":")[2]) - 1
    there = [line["text"] for line in edit["lines"] if line["sign"] != ADDED]
    assert lines[first : first + len(there)] == there, "the page shows the lines as they are"
    new = [line["text"] for line in edit["lines"] if line["sign"] != REMOVED]
    return "\n".join([*lines[:first], *new, *lines[first + len(there) :]]) + "\n"


@pytest.mark.words
@pytest.mark.parametrize(
    ("source", "kind", "expected", "told"),
    [
        (
            LIST,
            FindingKind.GRAPH,
            [(REMOVED, "outputs.append(model(x).sum())"), (ADDED, "outputs.append(model(x).sum().detach())")],
            "change before.py:{line} to: outputs.append(model(x).sum().detach())",
        ),
        (
            SUM,
            FindingKind.GRAPH,
            [(REMOVED, "outputs += model(x).sum()"), (ADDED, "outputs += model(x).sum().detach()")],
            "change before.py:{line} to: outputs += model(x).sum().detach()",
        ),
        (
            ZEROS,
            FindingKind.SET_TO_NONE,
            [
                (REMOVED, "optimizer.zero_grad(set_to_none=False)"),
                (ADDED, "optimizer.zero_grad(set_to_none=True)"),
            ],
            "change before.py:{line} to: optimizer.zero_grad(set_to_none=True)",
        ),
        (
            VARIABLE,
            FindingKind.DRAG,
            [(KEPT, "total = first.sum()"), (ADDED, "del first")],
            "add below before.py:{line}: del first",
        ),
    ],
)
def test_a_program_with_the_change_has_no_such_finding(
    source, kind, expected, *, told, tmp_path, monkeypatch
):
    """The program runs with the shown lines in place of its own, and its peak is the predicted one."""
    source = textwrap.dedent(source)
    reading, file = run(source, tmp_path, "before")
    finding = next(each for each in reading.findings if each.kind is kind)
    edit = edit_of(finding, CodeReader(reading.meta["started_s"]))
    assert shown(edit) == expected
    assert edit["site"].startswith(f"{file}:")
    monkeypatch.chdir(tmp_path)
    line = edit["site"].rpartition(":")[2]
    assert told.format(line=line) in " ".join(reading.summary().split())
    after, _ = run(applied(source, edit), tmp_path, "after")
    assert [each for each in after.findings if each.kind is kind] == []
    assert after.peak_bytes < reading.peak_bytes


def test_a_changed_file_and_a_page_without_sources_show_no_line(tmp_path):
    """The text may be another program's, or is not to be shared."""
    reading, file = run(textwrap.dedent(LIST), tmp_path, "changed")
    with_lines = page_model(reading)["findings"]
    assert "outputs.append(model(x).sum().detach())" in with_lines[0]["edit"]["code"]
    assert [finding["edit"] for finding in page_model(reading, source=False)["findings"]] == [None] * len(
        with_lines
    )
    assert edit_of(reading.findings[0], CodeReader(file.stat().st_mtime - 10)) is None


def finding(source, kind, edges, line, last_line=0):
    return SimpleNamespace(
        kind=kind,
        site=f"program.py:{line}",
        edges=tuple(Edge(kind, name) for kind, name in edges),
        last_used=f"program.py:{last_line}" if last_line else "",
        growth_bytes=0,
        added_at=(),
    )


class Text:
    """A reader of one source text."""

    def __init__(self, text):
        self._text = textwrap.dedent(text).strip("\n")

    def text(self, file):
        return self._text

    def indented(self, file, number):
        return self._text.splitlines()[number - 1]


OF_LIST = [(EdgeKind.LOCAL, "kept"), (EdgeKind.ITEM, None), (EdgeKind.GRAPH, None)]


@pytest.mark.parametrize(
    "body",
    [
        "kept.append(a); kept.append(b)",  # which of the two it is, is not known
        "kept.append(a)\n    kept[0] = b",
        "kept += [a]",
        "kept.insert(0, a)",
        "kept.append(a.detach())",  # it keeps no graph
        "kept.append([a, b])",
        "kept.append(a(\n        b))",  # more than a line
        "other.append(a)",
    ],
)
def test_a_list_that_may_be_filled_otherwise_shows_no_change(body):
    source = f"def train(a, b, other):\n    kept = []\n    {body}\n    return kept\n"
    edit = edit_of(finding(source, FindingKind.GRAPH, OF_LIST, 2), Text(source))
    assert edit is None


def test_an_expression_with_an_operator_gets_brackets():
    source = "def train(a, b):\n    kept = []\n    kept.append(a + b)  # the sum\n"
    edit = edit_of(finding(source, FindingKind.GRAPH, OF_LIST, 2), Text(source))
    assert shown(edit)[1] == (ADDED, "kept.append((a + b).detach())  # the sum")


DELETED = [(EdgeKind.LOCAL, "big")]
IN_LOOP = """
    def train(xs):
        for x in xs:
            big = make(x)
            y = big.sum()
            use(y)
"""
NOT_SAFE = {
    "read later": "def train(x):\n    big = make(x)\n    y = big.sum()\n    use(y)\n    return big.shape",
    "returned": "def train(x):\n    big = make(x)\n    y = 1\n    return big.sum()",
    "made before the loop": "def train(xs):\n    big = make(xs)\n    y = 1\n    for x in xs:\n        y = big + x",
    "in a closure": "def train(x):\n    big = make(x)\n    y = big.sum()\n    return lambda: big",
    "given a new value": "def train(x):\n    big = make(x)\n    big = big.sum()\n    use(1)",
    "two statements in a line": "def train(x):\n    big = make(x)\n    y = big.sum(); use(y)\n    use(1)",
    "read by the next pass": "def train(xs):\n    big = 0\n    for x in xs:\n        y = big + x\n        big = f(x)",
    "given a value in one branch": (
        "def train(x):\n    if x.any():\n        big = make(x)\n        v = big.view(-1)\n"
        "    else:\n        v = x\n    y = v.sum()\n    use(y)"
    ),
    "given a value if nothing fails": (
        "def train(x):\n    try:\n        big = make(x)\n        v = big.view(-1)\n"
        "    except ValueError:\n        v = x\n    y = v.sum()\n    use(y)"
    ),
}
LAST_LINE = {
    "returned": 4,
    "made before the loop": 5,
    "read by the next pass": 4,
    "given a value in one branch": 7,
    "given a value if nothing fails": 7,
}


@pytest.mark.parametrize("case", NOT_SAFE)
def test_a_variable_that_may_be_read_again_is_not_deleted(case):
    source = NOT_SAFE[case]
    found = finding(source, FindingKind.DRAG, DELETED, 2, LAST_LINE.get(case, 3))
    assert edit_of(found, Text(source)) is None


def test_a_variable_of_a_pass_is_deleted_in_the_pass():
    """The correct twin of those that are not safe: each pass gives the variable its value before it reads it."""
    code = Text(IN_LOOP)
    edit = edit_of(finding(IN_LOOP, FindingKind.DRAG, DELETED, 3, 4), code)
    assert [line["text"] for line in edit["lines"]] == ["        y = big.sum()", "        del big"]


def of_list(source, line):
    """Return a finding of a global list `kept` of a program that keeps graphs."""
    return finding(source, FindingKind.GRAPH, [(EdgeKind.GLOBAL, "kept"), (EdgeKind.ITEM, None)], line)


@pytest.mark.parametrize(
    ("value", "detached"),
    [
        ("model(x).sum()", "model(x).sum().detach()"),
        ("y + 1", "(y + 1).detach()"),
        ("y if x else None", None),
        ("[y]", None),
        ("tuple(model(x))", None),
        ("lambda: y", None),
        ("[each for each in y]", None),
    ],
)
def test_only_a_tensor_is_detached(value, detached):
    source = f"kept = []\ndef train(x):\n    y = model(x)\n    kept.append({value})\n"
    edit = edit_of(of_list(source, 4), Text(source))
    signs = [line["sign"] for line in edit["lines"]] if edit else []
    assert (REMOVED in signs) is (detached is not None)
    if detached is not None:
        assert edit["lines"][1]["text"].strip() == f"kept.append({detached})"


@pytest.mark.parametrize(
    "source",
    [
        "kept = []\ndef train(x):\n    keep(kept, model(x))\ndef other(x):\n    kept = []\n    kept.append(model(x))\n",
        "from lists import kept\ndef train(x):\n    kept.append(model(x))\n",
    ],
    ids=["a local of that name", "a global of another module"],
)
def test_another_variable_of_the_same_name_is_left_alone(source):
    assert edit_of(of_list(source, 3), Text(source)) is None


def test_lines_are_counted_as_python_counts_them():
    """A form feed and a separator of Unicode end no line."""
    source = 'kept = []\nmark = "\u2028"  # \x0c\ndef train(x):\n    kept.append(model(x).sum())\n'
    edit = edit_of(of_list(source, 4), Text(source))
    assert shown(edit) == [
        (REMOVED, "kept.append(model(x).sum())"),
        (ADDED, "kept.append(model(x).sum().detach())"),
    ]
    assert edit["site"].endswith(":4")


OF_ONE_CLASS = """
class A:
    def f(self):
        self.opt = torch.optim.Adam(m)
    def g(self):
        self.opt.step()
"""
OF_TWO_CLASSES = OF_ONE_CLASS.replace("    def g", "class B:\n    def g")


@pytest.mark.parametrize(
    ("source", "line", "is_known"),
    [
        (
            "def a(m):\n    opt = make(m)\n    opt.step()\ndef b(m):\n    opt = torch.optim.Adam(m)\n",
            3,
            False,
        ),
        ("opt = torch.optim.Adam(m)\ndef a():\n    opt.step()\n", 3, True),
        ("def main(m):\n    opt = torch.optim.Adam(m)\n    a(opt)\ndef a(opt):\n    opt.step()\n", 5, True),
        (OF_ONE_CLASS, 5, True),
        (OF_TWO_CLASSES, 6, False),
    ],
)
def test_the_keyword_goes_to_the_variable_that_steps(source, line, is_known):
    edit = edit_of(finding("", FindingKind.FUSED, [], line), Text(source))
    assert (edit is not None) is is_known


OPTIMIZER = """
    import torch

    def train(model, other):
        optimizer = {call}
        {stepped}.step()
"""


@pytest.mark.parametrize(
    ("call", "stepped", "expected"),
    [
        (
            "torch.optim.AdamW(model.parameters(), lr=1e-3)",
            "optimizer",
            "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)",
        ),
        (
            "torch.optim.AdamW(model.parameters())",
            "other",
            None,
        ),  # another optimizer than the one of the file
        ("torch.optim.AdamW(model.parameters(), foreach=True)", "optimizer", None),  # not both may be given
        (
            "torch.optim.AdamW(model.parameters(), fused=False)",
            "optimizer",
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
        ),
        ("make_optimizer(model.parameters())", "optimizer", None),  # its arguments are not known
        ("torch.optim.AdamW(**arguments)", "optimizer", None),
    ],
)
def test_the_keyword_goes_to_the_optimizer_that_steps(call, stepped, expected):
    code = Text(OPTIMIZER.format(call=call, stepped=stepped))
    edit = edit_of(finding("", FindingKind.FUSED, [], 5), code)
    assert (edit and shown(edit)[1][1]) == expected


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("loss.backward()", True),
        ("    model(x).sum().backward(retain_graph=True)", True),
        ("accelerator.backward(loss)", False),
        ("loss.backward(); optimizer.step()", False),
        ("if ready: loss.backward()", False),
    ],
)
def test_only_a_line_that_is_a_call_of_backward_is_replaced(line, is_known):
    edit = calls_of_backward("program.py:1", Text(line))
    assert (edit is not None) is is_known
