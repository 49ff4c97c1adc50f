"""The marker `no_findings`: a test fails for memory that it could free or avoid, and its corrected twin passes."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("inner_ini")

KEPT_GRAPHS = """
import pytest, torch
from torch import nn

def micro_batch(net, entropy_of, detach):
    hidden = net(torch.randn(2048, 64))
    entropy = entropy_of(hidden)
    hidden.square().mean().backward()
    return entropy.detach() if detach else entropy

def step(detach):
    net, entropy_of = (
        nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))) for _ in range(2)
    )
    output_lst = []
    for _ in range(4):
        output_lst.append(micro_batch(net, entropy_of, detach))
    return sum(entropy.sum().item() for entropy in output_lst)

@pytest.mark.no_findings(kinds=["graph"])
def test_that_keeps_graphs():
    step(detach=False)

@pytest.mark.no_findings(kinds=["graph"])
def test_that_detaches():
    step(detach=True)
"""


def test_a_kept_graph_fails_the_test_and_a_detached_output_passes(pytester):
    """The shape of verl #6696: a list keeps an output of every micro-batch, with a graph that no backward needs."""
    pytester.makepyfile(test_verl=KEPT_GRAPHS)
    result = pytester.runpytest("-v", "--memwatch-json=out.json")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines([
        "*test_that_keeps_graphs AVOIDABLE*",
        "*memwatch avoidable memory*",
        "The peak is * MiB (cpu).",
        "*graph: *`output_lst`*",
        "Failed for their memory: 1 test with avoidable memory",
    ])  # fmt: skip
    tests = {row["nodeid"]: row for row in json.loads((pytester.path / "out.json").read_text())["tests"]}
    (found,) = tests["test_verl.py::test_that_keeps_graphs"]["findings"]
    assert found["kind"] == "graph"
    assert found["predicted_peak_bytes"] < tests["test_verl.py::test_that_keeps_graphs"]["peak_bytes"]
    assert tests["test_verl.py::test_that_detaches"]["findings"] == []


def test_a_failure_and_its_rule_name_the_holder_without_how_it_is_known(pytester):
    """The remark stands in the section of the finding alone, and in the results."""
    pytester.makepyfile(
        test_kept="""
        import pytest, torch
        from torch import nn
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
        x = torch.randn(512, 512)
        @pytest.mark.no_findings
        def test_kept():
            outs = []
            for _ in range(4):
                outs.append(model(x).mean())
            assert len(outs) == 4
        """
    )
    result = pytester.runpytest("--memwatch-json=out.json")
    (test,) = json.loads((pytester.path / "out.json").read_text())["tests"]
    (found,) = test["findings"]
    remark = found["remark"].strip()
    assert remark
    assert remark not in found["holder"]
    assert result.stdout.str().count(remark) == 1
    [rule] = [line for line in result.outlines if "memwatch_ignore = " in line]
    assert rule.endswith(found["holder"])


def test_small_findings_and_other_kinds_do_not_count(pytester):
    pytester.makepyfile(
        test_verl=KEPT_GRAPHS.replace('kinds=["graph"]', 'kinds=["graph"], min_bytes="1 GiB"')
    )
    pytester.runpytest().assert_outcomes(passed=2)
    pytester.makepyfile(test_verl=KEPT_GRAPHS.replace('kinds=["graph"]', 'kinds=["optimizer"]'))
    pytester.runpytest().assert_outcomes(passed=2)


def test_the_option_chooses_the_tests(pytester):
    """`off` switches the marker off; `all` checks tests without it."""
    pytester.makepyfile(test_verl=KEPT_GRAPHS)
    off = pytester.runpytest("--memwatch-findings=off")
    off.assert_outcomes(passed=2)
    unmarked = KEPT_GRAPHS.replace('@pytest.mark.no_findings(kinds=["graph"])\n', "")
    pytester.makepyfile(test_verl=unmarked)
    pytester.runpytest().assert_outcomes(passed=2)
    every = pytester.runpytest("--memwatch-findings=all")
    every.assert_outcomes(failed=1, passed=1)


def test_a_rule_with_a_reason_excuses_a_finding(pytester):
    """The rules for leaks serve for findings too."""
    pytester.makepyfile(test_verl=KEPT_GRAPHS)
    pytester.makepyprojecttoml(
        '[tool.memwatch]\nignore_leaks = {"`output_lst`" = "the scores need the graphs"}\n'
    )
    pytester.runpytest().assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('min_bytes="much"', "*no_findings: *much*usage: no_findings(min_bytes=*"),
        ('kinds=["grph"]', "*no_findings: kinds='grph': choose of *graph*"),
    ],
)
def test_a_wrong_argument_stops_the_run_with_the_usage(pytester, arguments, told):
    """No test runs, and one line shows the right usage."""
    pytester.makepyfile(f"import pytest\n@pytest.mark.no_findings({arguments})\ndef test_it():\n    pass\n")
    result = pytester.runpytest()
    result.stderr.fnmatch_lines([told])


def test_a_wrong_mode_is_told(pytester):
    """As with leaks."""
    pytester.makepyfile("def test_it():\n    pass\n")
    result = pytester.runpytest("--memwatch-findings=some")
    result.stderr.fnmatch_lines(["*--memwatch-findings=some: choose one of marked, all, off*"])


MANY = """
import pytest, torch

class Recorder:
    def __init__(self):
        self.seen = None

    def record(self, x):
        self.seen = x * 2

def work(recorder):
    recorder.record(torch.ones(1024, 1024))
    return [torch.ones(1024, 1024) for _ in range(2)]

@pytest.mark.parametrize("n", range(5))
def test_it(n):
    work(Recorder())
"""


def test_one_cause_of_five_tests_is_told_once(pytester):
    """The failures show one test; the summary has the cause with its tests, its advice and a rule to copy."""
    pytester.makepyfile(test_many=MANY)
    result = pytester.runpytest("--memwatch-findings=all")
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines([
        "*Avoidable memory: 4.00 MiB, *`recorder.seen`* (cause-*, 5 tests)",
        "Avoidable memory: 5 tests, 1 cause",
        "cause-*  5 tests, up to 4.00 MiB: *`recorder.seen`*",
        "  advice: *",
        "  to tolerate it, in the ini file: memwatch_ignore = cause-*: known, *",
        "  first tests: *::test_it*, * (all of them with -v or --memwatch-json)",
    ])  # fmt: skip
    assert sum("AVOIDABLE " in line for line in result.stdout.lines) == 3
    assert len(result.stdout.lines) <= 40
    [rule] = [line.partition("in the ini file: ")[2] for line in result.stdout.lines if "to tolerate" in line]
    pytester.makeini(f"[pytest]\n{rule}\n")
    tolerated = pytester.runpytest("--memwatch-findings=all")
    tolerated.assert_outcomes(passed=5)


def test_a_known_leak_is_plain_data_in_the_results(pytester):
    """The JSON file has the library and the link of its thread."""
    pytester.makepyfile(
        test_known="""
        import torch
        class Exp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.result = x.exp()
                return ctx.result
            @staticmethod
            def backward(ctx, gradient):
                return gradient * ctx.result
        def test_it():
            Exp.apply(torch.randn(4096, requires_grad=True))
        """
    )
    pytester.runpytest("--memwatch-leaks=all", "--memwatch-json=out.json")
    (test,) = json.loads((pytester.path / "out.json").read_text())["tests"]
    (leak,) = test["leaks"]
    assert leak["known"]["library"] == "torch"
    assert leak["known"]["link"] == "https://github.com/pytorch/pytorch/issues/25340"
