"""The marker `no_findings`: a test fails for memory that it could free or avoid, and its corrected twin passes."""

from __future__ import annotations

import json

import pytest

from memwatch.sizes import format_bytes

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
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([
        "*test_that_keeps_graphs AVOIDABLE*",
        "*memwatch avoidable memory*",
        "The test's own peak is * MiB (cpu); * were alive before it.*",
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
    assert rule.endswith(found["place"])


STEP = """
import gc
import pytest, torch
gc.collect()  # what earlier sessions left is not freed in the body

@pytest.mark.no_findings
def test_step():
    net = torch.nn.Linear(1024, 512)
    adam = torch.optim.AdamW(net.parameters(), foreach=False, fused={fused})
    for _ in range(2):
        net(torch.randn(4, 1024)).square().mean().backward()
        adam.step()
        adam.zero_grad()
"""


def test_memory_of_earlier_tests_is_no_part_of_the_peak(pytester):
    """The sentences have the same figures whether the tests before left 64 MiB or nothing."""
    pytester.makepyfile(test_step=STEP.format(fused=None))
    alone = pytester.runpytest("--memwatch-json=out.json")
    pytester.makepyfile(test_step=STEP.format(fused=None) + "kept = torch.zeros(16 << 20)\n")
    beside = pytester.runpytest("--memwatch-json=beside.json")
    shown = []
    for result in (alone, beside):
        [head] = [line for line in result.outlines if line.startswith("The test's own peak is ")]
        falls = [line.partition("the peak would fall to ")[2] for line in result.outlines]
        shown.append((head.partition(";")[0], *filter(None, falls)))
    assert len(shown[0]) == 3  # the section and the summary
    assert shown[0] == shown[1]
    tests = [
        json.loads((pytester.path / name).read_text())["tests"][0] for name in ("out.json", "beside.json")
    ]
    left_bytes = tests[1]["baseline_bytes"] - tests[0]["baseline_bytes"]
    # tensors that earlier tests of this worker left may be freed between the two sessions
    assert left_bytes == pytest.approx(64 << 20, abs=1 << 20)
    predicted = [test["findings"][0]["predicted_peak_bytes"] for test in tests]
    assert predicted[1] - predicted[0] == left_bytes


def test_the_place_of_an_optimizer_is_named_without_a_comma(pytester):
    pytester.makepyfile(test_step=STEP.format(fused=None))
    result = pytester.runpytest()
    result.stdout.fnmatch_lines([
        "Avoidable memory: *: the optimizer's step at test_step.py:11 (cause-*)",
        "cause-*  1 test, up to *: the optimizer's step at test_step.py:11",
        "  to tolerate it, in the ini file: memwatch_ignore = cause-*: known, the optimizer's step at test_step.py:11",
    ])  # fmt: skip
    pytester.makepyfile(test_step=STEP.format(fused=True))
    pytester.runpytest().assert_outcomes(passed=1)


OLD_GRADIENTS = """
import gc
import pytest, torch
gc.collect()
net = torch.nn.Linear(1024, 1024)
net(torch.ones(1, 1024)).sum().backward()

@pytest.mark.no_findings
def test_step():
    loss = net(torch.randn(64, 1024)).square().mean()
    net.zero_grad()
    loss.backward()
"""


def test_a_test_that_frees_memory_from_before_it_shows_the_peak_of_the_process_too(pytester):
    """The allocations of the body and the peak of the process are at different instants."""
    pytester.makepyfile(test_step=OLD_GRADIENTS)
    result = pytester.runpytest("--memwatch-json=out.json")
    [test] = json.loads((pytester.path / "out.json").read_text())["tests"]
    own, before, peak, after = (
        format_bytes(nbytes)
        for nbytes in (
            test["peak_increase_bytes"],
            test["baseline_bytes"],
            test["peak_bytes"],
            test["findings"][0]["predicted_peak_bytes"],
        )
    )
    result.stdout.fnmatch_lines([
        f"The test's own peak is {own} (cpu); {before} were alive before it. The peak of the process is {peak}.",
        f"4.00 MiB  gradient: *; the peak would fall to {after}",
    ])  # fmt: skip


LEAKY_STEP = """
import gc
import pytest, torch
gc.collect()
net = torch.nn.Linear(1024, 512)
adam = torch.optim.AdamW(net.parameters(), foreach=False)
kept = []

def step():
    net(torch.randn(4, 1024)).square().mean().backward()
    adam.step()
    adam.zero_grad()

@pytest.mark.no_findings
@pytest.mark.no_tensor_leaks
def test_that_leaks():
    step()
    kept.append(torch.ones(8))
    net.register_forward_hook(lambda module, args, out: None)

@pytest.mark.no_findings
def test_that_does_not_leak():
    step()
"""


def test_a_test_that_also_leaks_counts_among_those_with_avoidable_memory(pytester):
    """Its report has both sections."""
    pytester.makepyfile(test_step=LEAKY_STEP)
    result = pytester.runpytest()
    result.assert_outcomes(failed=2)
    sections = [line for line in result.outlines if "- memwatch avoidable memory -" in line]
    assert len(sections) == 2
    result.stdout.fnmatch_lines([
        "Failed for their memory: 1 test with leaked tensors, 2 tests with avoidable memory",
        "Avoidable memory: 2 tests, 1 cause",
    ])  # fmt: skip


def test_the_printed_rules_can_be_pasted_into_the_ini_file(pytester):
    """The first line has the key, and the others belong on indented lines below it."""
    pytester.makepyfile(test_step=LEAKY_STEP)
    lines = [line for line in pytester.runpytest().outlines if "to tolerate it" in line]
    assert len(lines) == 3
    first, *others = [line.partition(": ")[2] for line in lines]
    assert first.startswith("memwatch_ignore = cause-")
    rules = "".join(f"    {line}\n" for line in others)
    with (pytester.path / "tox.ini").open("a") as ini:
        ini.write(f"\n{first}\n{rules}")
    result = pytester.runpytest()
    result.assert_outcomes(passed=2)


def test_a_hook_is_shown_with_the_line_that_defines_it(pytester):
    """No op makes a hook, and the mark of the test leaves nothing to advise."""
    pytester.makepyfile(test_step=LEAKY_STEP)
    result = pytester.runpytest()
    for words in ("not seen", "mark the test"):
        result.stdout.no_fnmatch_line(f"*{words}*")
    shown = [line for line in result.outlines if "defined at test_step.py:" in line]
    assert len(shown) == 2  # the section and the summary


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


def test_the_least_size_of_a_finding_is_an_option_for_tests_without_the_marker(pytester):
    """The marker keeps its own."""
    unmarked = KEPT_GRAPHS.replace('@pytest.mark.no_findings(kinds=["graph"])\n', "")
    pytester.makepyfile(test_verl=unmarked)
    few = pytester.runpytest("--memwatch-findings=all", "--memwatch-findings-min-bytes=1GiB")
    few.assert_outcomes(passed=2)
    wrong = pytester.runpytest("--memwatch-findings=all", "--memwatch-findings-min-bytes=much")
    wrong.stderr.fnmatch_lines(["*--memwatch-findings-min-bytes=much: *"])
    pytester.makepyfile(test_verl=KEPT_GRAPHS)
    marked = pytester.runpytest("--memwatch-findings=all", "--memwatch-findings-min-bytes=1GiB")
    marked.assert_outcomes(failed=1, passed=1)


FORWARD = """
import pytest, torch
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)))

{marker}
def test_shape():
    y = model(torch.randn(4096, 64))
    assert y.shape == (4096, 64)
"""


def test_a_test_that_only_runs_a_forward_fails_by_its_marker_alone(pytester):
    """Many tests check a result so. The graph of the forward is no bug of the model."""
    pytester.makepyfile(test_forward=FORWARD.format(marker=""))
    pytester.runpytest("--memwatch-findings=all").assert_outcomes(passed=1)
    pytester.makepyfile(test_forward=FORWARD.format(marker="@pytest.mark.no_findings"))
    pytester.runpytest().assert_outcomes(failed=1)


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


def test_files_of_one_name_in_two_folders_are_two_causes(pytester, monkeypatch):
    """The causes are the same from whichever folder pytest starts."""
    text, test = (
        MANY.split("@pytest.mark.parametrize", maxsplit=1)[0],
        "def test_it():\n    work(Recorder())\n",
    )
    for folder in ("vision", "speech"):
        pytester.mkpydir(folder).joinpath("train.py").write_text(text)
        pytester.path.joinpath(f"test_{folder}.py").write_text(
            f"from {folder}.train import Recorder, work\n{test}"
        )
    result = pytester.runpytest("--memwatch-findings=all", "--memwatch-json=out.json")
    result.stdout.fnmatch_lines(["Avoidable memory: 2 tests, 2 causes"])
    causes = _causes_in(pytester.path / "out.json")
    assert len(causes) == 2
    monkeypatch.chdir(pytester.mkdir("below"))
    pytester.runpytest(
        pytester.path, "--memwatch-findings=all", f"--memwatch-json={pytester.path}/below.json"
    )
    assert _causes_in(pytester.path / "below.json") == causes


def _causes_in(path):
    tests = json.loads(path.read_text())["tests"]
    return sorted({each["cause"] for test in tests for each in test["findings"]})
