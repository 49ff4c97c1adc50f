"""`--json` and the answers of `memwatch mcp`: the fields that docs/json.md has, with the figures of the reading."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import get_type_hints

import pytest
from mcp import Client

import memwatch
from memwatch.cli.main import main
from memwatch.cli.mcp_tools import server
from memwatch.reading import Reading
from memwatch.report.records import schema
from memwatch.report.records.docs import json_page
from memwatch.words.processes import PARTS


def printed(capsys, *words):
    assert main([*map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def asked(capture, tool, **arguments):
    """Send the server one request, through the protocol and without a process."""

    async def ask():
        async with Client(server(memwatch.load(capture))) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(ask())


def assert_fields(record, kind):
    assert record.keys() == get_type_hints(kind).keys()


def test_the_page_of_documentation_is_made_of_the_records():
    """docs/json.md equals the output of `python -m memwatch.report.records.docs`, and has every record."""
    records = [each for name, each in vars(schema).items() if name.endswith("Record")]
    assert {each.__name__ for each in schema.RECORDS} == {each.__name__ for each in records}
    assert (Path(__file__).parents[2] / "docs" / "json.md").read_text() == json_page()


def test_a_summary_as_json_has_the_figures_of_the_reading(narrow, capsys):
    """The categories add up to the peak, and each part has the fields that are promised."""
    reading, record = memwatch.load(narrow), printed(capsys, "summary", "--json", "-n", 3, narrow)
    assert_fields(record, schema.SummaryRecord)
    assert_fields(record["peak"], schema.PeakRecord)
    assert record["peak"]["peak_bytes"] == reading.peak_bytes
    assert sum(group["nbytes"] for group in record["categories"]) == reading.peak_bytes
    assert [each["storage"] for each in record["storages"]] == reading.at_peak.index[:3].tolist()
    for each in record["storages"]:
        assert_fields(each, schema.HeldStorageRecord)
    for finding in record["findings"]:
        assert_fields(finding, schema.FindingRecord)


def test_a_summary_as_json_has_the_whole_process(narrow, capsys):
    process, record = memwatch.load(narrow).process, printed(capsys, "summary", "--json", narrow)["process"]
    assert_fields(record, schema.ReadingsRecord)
    assert record["readings"] == len(process) >= 2
    assert record["largest"]["rss_bytes"] == process["rss_bytes"].max()
    assert record["entry"]["time_ns"] <= record["largest"]["time_ns"] <= record["last"]["time_ns"]
    for each in (record["entry"], record["largest"], record["last"]):
        assert_fields(each, schema.ProcessPartsRecord)
        assert sum(each[name] for name in PARTS) == each["rss_bytes"] > 0


def test_a_summary_as_json_of_a_process_that_was_not_read_says_so(narrow, capsys, monkeypatch):
    monkeypatch.setattr(Reading, "process", memwatch.load(narrow).process.head(0))
    assert printed(capsys, "summary", "--json", narrow)["process"] is None


def test_totals_as_json_have_the_fields_that_are_promised(narrow, capsys):
    """The categories add up to the peak; devices, lines and ops are records, too."""
    record = printed(capsys, "stats", "--json", narrow)
    assert_fields(record, schema.StatsRecord)
    assert sum(record["category_bytes"].values()) == memwatch.load(narrow).peak_bytes
    for each in record["devices"].values():
        assert_fields(each, schema.DevicePeakRecord)
    assert record["top_lines"]
    for each in (*record["top_lines"], *record["top_ops"]):
        assert_fields(each, schema.AllocatedRecord)


def test_a_tree_as_json_adds_up_at_every_branch(narrow, capsys):
    def check(branch):
        assert_fields(branch, schema.TreeRecord)
        children = branch["children"]
        assert not children or sum(child["nbytes"] for child in children) == branch["nbytes"]
        for child in children:
            check(child)

    record = printed(capsys, "tree", "--json", narrow)
    assert record["nbytes"] == memwatch.load(narrow).peak_bytes
    check(record)


def test_a_difference_as_json_has_the_fields_that_are_promised(narrow, wide, capsys):
    """Sites add up to both peaks."""
    record = printed(capsys, "diff", "--json", narrow, wide)
    assert_fields(record, schema.DifferenceRecord)
    for site in record["sites"]:
        assert_fields(site, schema.SiteRecord)
    assert sum(site["new_bytes"] for site in record["sites"]) == record["new_peak_bytes"]


def test_the_server_answers_as_the_verbs_print(narrow, wide, capsys):
    """A summary and a difference are the same through the protocol."""
    assert asked(narrow, "summary").structured_content == printed(capsys, "summary", "--json", narrow)
    assert asked(wide, "diff", other=str(narrow)).structured_content == printed(
        capsys, "diff", "--json", narrow, wide
    )


def test_the_server_lists_what_was_live_and_who_held_it(narrow):
    """The live set at the peak is the peak; holders can be searched."""
    reading = memwatch.load(narrow)
    live = asked(narrow, "live_set", rows=10**6).structured_content
    assert_fields(live, schema.LiveRecord)
    assert live["live_bytes"] == sum(each["nbytes"] for each in live["storages"]) == reading.peak_bytes
    name = reading.at_peak["name"].iloc[0]
    found = asked(narrow, "holders", matching=name).structured_content["result"]
    assert found
    assert all(name in each.values() for each in found)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("live_set", {"event": 10**9}, "event 1000000000 is not in the timeline"),
        ("summary", {"device": "cuda"}, "no bytes were recorded on 'cuda'"),
        ("diff", {"other": "gone.memwatch"}, "gone.memwatch is not a file"),
    ],
)
def test_the_server_says_what_is_wrong_with_a_question(narrow, tool, arguments, words):
    """A question that cannot be answered is an answer that says why, and the server goes on."""
    answer = asked(narrow, tool, **arguments)
    assert answer.is_error
    assert words in answer.content[0].text


def test_every_tool_says_that_it_only_reads(narrow):
    """Clients may call the tools without asking."""

    async def ask():
        async with Client(server(memwatch.load(narrow))) as client:
            return (await client.list_tools()).tools

    tools = asyncio.run(ask())
    assert {tool.name for tool in tools} == {"summary", "live_set", "findings", "ways", "holders", "diff"}
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
