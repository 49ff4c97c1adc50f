"""Words are made last: nothing that decides reads English."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from scrambled_words import VARIABLE, literals, tables, texts

from memwatch.kinds.roles import CATEGORIES, ROLES

TOP: Final = Path(__file__).resolve().parent.parent
PROGRAMS: Final = {
    "autograd": ("tensor_hook", "saved_view", "identity_pack", "function_class_per_call"),
    "python": (
        "bound_method_cycle", "generator", "self_cycle", "recursive_closure", "partial", "lru_cache", "thread",
        "global_list", "class_attribute",
    ),
}  # fmt: skip
PLUGIN: Final = (
    "test_max_bytes_tolerates_small_growth",
    "test_ignore_rules_of_the_ini_file",
    "test_fixture_checks_the_whole_test",
)
LEAK: Final = "tests/leaks/test_leaks_programs_{}.py::test_a_leak_is_found_with_its_kind_and_references[{}]"
OF_THE_HEAP: Final = (
    "tests/heap/test_heap_names.py",
    "tests/heap/test_heap_graph.py::test_one_search_names_the_references_of_a_training_step",
    "tests/heap/test_heap_graph.py::test_why_alive_shows_a_loop_when_no_root_reaches_the_tensor",
    "tests/leaks/test_leaks_check.py::test_a_list_from_before_the_block_is_a_holder",
    "tests/leaks/test_leaks_check.py::test_cycles_are_reported_without_waiting_for_gc",
    "tests/leaks/test_leaks_draw.py::test_a_cycle_is_closed",
    *(LEAK.format(family, program) for family, programs in PROGRAMS.items() for program in programs),
    *(f"tests/plugin/test_plugin_leaks.py::{name}" for name in PLUGIN),
    "tests/plugin/test_plugin_compiler.py::test_clean_tests_pass",
)
OF_THE_RECORDING: Final = (
    "tests/findings/test_findings_holder_kinds.py",
    "tests/findings/test_findings_samples.py::test_many_context_variables_hide_nothing",
    "tests/findings/test_findings_samples.py::test_samples_prolong_no_life",
    "tests/report/test_report_model.py::test_packed_events_replay_to_the_timeline",
    "tests/report/test_report_text.py::test_lines_keep_to_the_width",
)


@pytest.mark.parametrize("tests", [OF_THE_HEAP, OF_THE_RECORDING], ids=["of the heap", "of the recording"])
def test_nothing_but_the_words_depends_on_the_words(tests, pytestconfig):
    """With every word changed, leak programs, heap, drawing, holders, report and plugin still do the same.

    In a sample of the tests this is a sample too.
    """
    cases = f"--cases={pytestconfig.getoption('--cases')}"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "not words",
            "-p",
            "no:cacheprovider",
            cases,
            *tests,
        ],
        cwd=TOP,
        env={**os.environ, VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


_MATCHING: Final = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit",
    "find", "rfind", "index", "rindex", "count", "compile", "match", "search", "fullmatch", "findall", "finditer",
    "sub", "strip", "lstrip", "rstrip",
}  # fmt: skip
_IDENTIFIER: Final = re.compile(r"[\w.<>/\\-]*\Z")
_IDENTIFIERS: Final = {
    "IPython": "a module, looked up in sys.modules",
    "torch": "a module, looked up in sys.modules",
    "foreach": "an option of torch's optimizers",
    "top": "a key of the data of a measurement",
    "fused": "an option of torch's optimizers",
    "out": "the overload of an op that writes where it is told",
    "x": "a permission of a mapping, as the kernel writes it",
    "error": "a key of the answer of a child process",
    "next_functions": "an attribute of autograd's nodes",
    "run": "the method that a process of multiprocessing calls",
    "register_prehook": "a method of autograd's nodes",
    "memory": "a controller of control groups, as the kernel writes it",
    "empty": "a part of the names of torch's ops",
    "blocks": "a key of a memory snapshot of torch",
}
"""Words of templates that are names of Python or torch, each with the name to look up."""
_DATA: Final = {*CATEGORIES, *ROLES}  # values of columns: they are in tables, and in sentences too


def _matched_strings(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the string literals that code compares text with, and their lines; module constants are followed."""
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    matched: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            matched += [node.left, *node.comparators]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MATCHING
        ):
            matched += node.args
    matched += [constants[node.id] for node in matched if isinstance(node, ast.Name) and node.id in constants]
    return [
        (leaf.lineno, leaf.value)
        for node in matched
        for leaf in ast.walk(node)
        if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
    ]


def _sources() -> list[Path]:
    sources = [*TOP.glob("memwatch/**/*.py"), *TOP.glob("plugins/**/*.py")]
    return [path for path in sources if TOP / "memwatch/words" not in path.parents]


@pytest.mark.words
def test_no_module_matches_on_english():
    """Outside the words package no literal that is part of a template is compared with, or searched in, a text."""
    parts = {part for _, _, value in tables() for text in texts(value) for part in literals(text)}
    parts = {part for part in parts if part.strip() and not _IDENTIFIER.match(part.strip())}
    guilty = [
        f"{path.relative_to(TOP)}:{line}: {text!r}"
        for path in _sources()
        for line, text in _matched_strings(ast.parse(path.read_text(encoding="utf-8")))
        if not _IDENTIFIER.match(text)
        and text not in _DATA
        and len(text) > 3
        and any(text in part for part in parts)
    ]
    assert guilty == []


def _searched_strings(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the string literals that code searches a text for: with `in`, or a method of texts and patterns."""
    places: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            places.append(node.left)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MATCHING
            and not _is_position_of_value(node.func)
        ):
            places += node.args
    return [
        (leaf.lineno, leaf.value)
        for node in places
        for leaf in (node.elts if isinstance(node, ast.Tuple) else [node])
        if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
    ]


def _is_position_of_value(function: ast.Attribute) -> bool:
    """Return True for `PHASES.index`: the position of a value in a tuple is not a text."""
    return function.attr == "index" and isinstance(function.value, ast.Name) and function.value.id.isupper()


@pytest.mark.parametrize(
    "code",
    [
        'x = "suspended" in text',
        'if "suspended" not in text: pass',
        'x = text.startswith(("suspended", 1))',
        'x = re.search("suspended", text)',
        'x = text.index("suspended")',
    ],
)
def test_a_searched_word_is_noticed(code):
    """Whether it is searched with an operator, a method or a pattern."""
    assert _searched_strings(ast.parse(code)) == [(1, "suspended")]


@pytest.mark.words
def test_no_module_searches_a_text_for_a_word():
    """Outside the words package no single word of a template is searched in a text, but identifiers may be."""
    words = {
        word
        for _, _, value in tables()
        for text in texts(value)
        for part in literals(text)
        for word in re.findall(r"\w+", part)
    }
    guilty = [
        f"{path.relative_to(TOP)}:{line}: {text!r}"
        for path in _sources()
        for line, text in _searched_strings(ast.parse(path.read_text(encoding="utf-8")))
        if text.strip() in words and text not in _DATA and text not in _IDENTIFIERS
    ]
    assert guilty == []
