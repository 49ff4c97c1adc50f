"""The profile of pprof: a reader built from the published schema gets the figures and the stacks back."""

from __future__ import annotations

import gzip

import pytest
import report_readings
import torch

import memwatch
from memwatch.report.pprof import pprof

descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
unknown_fields = pytest.importorskip("google.protobuf.unknown_fields")
message_factory = pytest.importorskip("google.protobuf.message_factory")

# messages of profile.proto: (field, number, type), with a star where the field is repeated
SCHEMA = {
    "ValueType": "type 1 int64, unit 2 int64",
    "Label": "key 1 int64, str 2 int64, num 3 int64, num_unit 4 int64",
    "Sample": "location_id* 1 uint64, value* 2 int64, label* 3 Label",
    "Mapping": "id 1 uint64, memory_start 2 uint64, memory_limit 3 uint64, file_offset 4 uint64, filename 5 int64, "
    "build_id 6 int64, has_functions 7 bool, has_filenames 8 bool, has_line_numbers 9 bool, has_inline_frames 10 bool",
    "Line": "function_id 1 uint64, line 2 int64, column 3 int64",
    "Location": "id 1 uint64, mapping_id 2 uint64, address 3 uint64, line* 4 Line, is_folded 5 bool",
    "Function": "id 1 uint64, name 2 int64, system_name 3 int64, filename 4 int64, start_line 5 int64",
    "Profile": "sample_type* 1 ValueType, sample* 2 Sample, mapping* 3 Mapping, location* 4 Location, "
    "function* 5 Function, string_table* 6 string, drop_frames 7 int64, keep_frames 8 int64, time_nanos 9 int64, "
    "duration_nanos 10 int64, period_type 11 ValueType, period 12 int64, comment* 13 int64, "
    "default_sample_type 14 int64",
}


@pytest.fixture(scope="module")
def profile_class():
    """Return the class of the message `Profile`, made from the schema above."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="pprof", syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for each in fields.split(", "):
            field, number, kind = each.split()
            added = message.field.add(name=field.rstrip("*"), number=int(number))
            added.label = kinds.LABEL_REPEATED if field.endswith("*") else kinds.LABEL_OPTIONAL
            if kind in SCHEMA:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".pprof.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("pprof.Profile"))


@pytest.fixture
def read(profile_class):
    """Return a function that reads a profile into plain samples: (frames, values by type, category)."""

    def read(content):
        profile = profile_class.FromString(gzip.decompress(content))
        assert len(unknown_fields.UnknownFieldSet(profile)) == 0
        strings = profile.string_table
        assert strings[0] == ""
        types = [(strings[each.type], strings[each.unit]) for each in profile.sample_type]
        assert sorted(types) == [
            ("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes"),
        ]  # fmt: skip
        assert strings[profile.default_sample_type] == "inuse_space"
        functions = {each.id: (strings[each.filename], strings[each.name]) for each in profile.function}
        locations = {
            each.id: (*functions[each.line[0].function_id], each.line[0].line) for each in profile.location
        }
        assert 0 not in functions
        assert 0 not in locations
        samples = []
        for sample in profile.sample:
            values = dict(zip((name for name, _ in types), sample.value, strict=True))
            (label,) = sample.label
            assert strings[label.key] == "category"
            assert len(sample.location_id) > 0
            samples.append(([locations[each] for each in sample.location_id], values, strings[label.str]))
        return profile, samples

    return read


def total(samples, name):
    return sum(values[name] for _, values, _ in samples)


def test_the_sums_are_those_of_the_reading(training, read):
    """In use is the peak to the byte; allocated are all allocations of the block, by category too."""
    from memwatch.report.stats import stats

    profile, samples = read(pprof(training))
    figures = stats(training)
    assert total(samples, "inuse_space") == training.peak_bytes
    assert total(samples, "inuse_objects") == len(training.at_peak)
    assert total(samples, "alloc_space") == figures["allocated_bytes"]
    assert total(samples, "alloc_objects") == figures["allocations"]
    for category, nbytes in figures["category_bytes"].items():
        assert total([each for each in samples if each[2] == category], "inuse_space") == nbytes
    assert profile.time_nanos == training.meta["start_ns"]
    assert profile.duration_nanos == training.meta["end_ns"] - training.meta["start_ns"]


def test_a_sample_has_the_python_stack_innermost_first(read):
    """Function, file and line equal those of the calls."""

    def inner(n):
        return torch.ones(n)

    def outer(n):
        return inner(n)

    with memwatch.profile() as prof:
        kept = outer(1000)
        outer(500)
        outer(500)
    _, samples = read(pprof(prof))

    def names(frames):
        return [name.rpartition(".")[2] for _, name, _ in frames]

    found = [(frames, values) for frames, values, _ in samples if names(frames)[0] == "inner"]
    in_use = [each for each in found if each[1]["inuse_space"]]
    # one of the small ones at a time
    assert sum(values["inuse_space"] for _, values in in_use) == 4 * (1000 + 500)
    assert sum(values["inuse_objects"] for _, values in in_use) == 2
    frames = in_use[0][0]
    assert names(frames)[:3] == ["inner", "outer", "test_a_sample_has_the_python_stack_innermost_first"]
    assert all(file == __file__ for file, _, _ in frames[:3])
    assert frames[0][2] == inner.__code__.co_firstlineno + 1
    assert sum(values["alloc_space"] for _, values in found) == 4 * (1000 + 500 + 500)
    assert sum(values["alloc_objects"] for _, values in found) == 3
    del kept


def test_what_was_alive_at_entry_is_in_use_and_was_not_allocated(read):
    before = torch.ones(1000)
    with memwatch.profile() as prof:
        before + 1
    _, samples = read(pprof(prof))
    at_entry = [values for frames, values, _ in samples if frames[0][1] == "[alive at entry]"]
    assert sum(values["inuse_space"] for values in at_entry) == prof.baseline_bytes
    assert not any(values["alloc_objects"] or values["alloc_space"] for values in at_entry)


@pytest.mark.parametrize("make", [report_readings.hostile, report_readings.empty])
def test_hostile_and_empty_readings_can_be_read(make, read):
    reading = make()
    _, samples = read(pprof(reading))
    assert total(samples, "inuse_space") == reading.peak_bytes


def test_one_reading_gives_the_same_bytes_each_time(training):
    assert pprof(training) == pprof(training)
