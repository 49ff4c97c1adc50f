"""The reader of pickles takes plain data as Python's own does, and nothing else: a hostile file runs nothing."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import pickletools
import subprocess
import sys
import tracemalloc

import pytest

from memwatch.cli.main import main
from memwatch.memory_snapshot.fields import SnapshotError
from memwatch.memory_snapshot.plain_pickle import read_plain_pickle

SHARED = ["a", "b"]
PLAIN = [
    None, True, False, 0, 255, 256, 65536, -1, 1 << 31, -(1 << 63), (1 << 64) - 1, 1.5, float("inf"), "", "text",
    "é" * 300, "\ud800", b"bytes", b"x" * 300, [], [1], [1, 2], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {"a": 1},
    {"a": 1, "b": [{"c": (0, 0)}]}, [SHARED, SHARED], list(range(3000)),
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_read_as_python_reads_it(protocol):
    """Containers, numbers, text and bytes come back equal, in every binary protocol, by both of Python's picklers."""
    for value in [*PLAIN, PLAIN]:
        written = pickle.dumps(value, protocol)
        if b"_codecs" in written:  # protocol 2 has no bytes: it calls a function that makes them
            continue
        assert read_plain_pickle(written) == value
        by_python = io.BytesIO()
        pickle._Pickler(by_python, protocol).dump(value)
        assert read_plain_pickle(by_python.getvalue()) == value
        assert read_plain_pickle(pickletools.optimize(written)) == value


def test_what_is_shared_stays_shared():
    """A list that is in a thousand entries is one object."""
    first, second = read_plain_pickle(pickle.dumps([SHARED, SHARED]))
    assert first is second


class Calls:
    """A value whose pickle calls a function when Python loads it."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


MARK_FILE = "ran"
TOUCH = f"open({MARK_FILE!r}, 'w').close()"
HUGE = (1 << 62).to_bytes(8, "little")
HOSTILE = {
    "os.system": pickle.dumps(Calls(os.system, f"touch {MARK_FILE}")),
    "eval": pickle.dumps(Calls(eval, TOUCH)),
    "exec, protocol 0": pickle.dumps(Calls(exec, TOUCH), 0),
    "exec, protocol 2": pickle.dumps(Calls(exec, TOUCH), 2),
    "popen inside a snapshot": pickle.dumps(
        {"segments": [], "device_traces": [[Calls(subprocess.check_call, ["touch", MARK_FILE])]]}
    ),
    "global by line": b"cos\nsystem\n(S'touch ran'\ntR.",
    "inst": b"(S'touch ran'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\n\x8c\x09touch rano.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x09touch ran\x85R.",
    "reduce of data": b"\x80\x04\x8c\x02os\x8c\x09touch ran\x85R.",
    "new object": b"\x80\x04]).\x81.",
    "new object with keywords": b"\x80\x04])}\x92.",
    "state": b"\x80\x04]}b.",
    "persistent id": b"\x80\x04Ptouch ran\n.",
    "persistent id from the stack": b"\x80\x04\x8c\x09touch ranQ.",
    "extension 1": b"\x80\x02\x82\xf0.",
    "extension 2": b"\x80\x02\x83\xf0\x00.",
    "extension 4": b"\x80\x02\x84\xf0\x00\x00\x00.",
    "set": pickle.dumps({1, 2}),
    "bytearray": pickle.dumps(bytearray(b"x"), 5),
    "buffer": b"\x80\x05\x97.",
    "text of 4 EiB": b"\x80\x04\x8d" + HUGE + b"x.",
    "bytes of 4 EiB": b"\x80\x04\x8e" + HUGE + b"x.",
    "bytearray of 4 EiB": b"\x80\x05\x96" + HUGE + b"x.",
    "text of 4 GiB": b"\x80\x04X\xff\xff\xff\xffx.",
    "integer of 2 GiB": b"\x80\x04\x8b\xff\xff\xff\x7fx.",
    "integer of 255 bytes": b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".",
    "frame of 4 EiB": b"\x80\x04\x95" + HUGE + b".",
    "memo at 4 Gi": b"\x80\x04]r\xff\xff\xff\xff0.",
    "memo that is not there": b"\x80\x04h\x05.",
    "list in itself": b"\x80\x04]\x94h\x00a.",
    "dict in itself": b"\x80\x04}\x94\x8c\x08segmentsh\x00s.",
    "entry in itself": b"\x80\x04}(\x8c\x0ddevice_traces]]\x94h\x00aa\x8c\x08segments]u.",
    "deep lists": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "deep tuple": b"\x80\x04)" + b"\x85" * 100_000 + b".",
    "deep tuple as a key": b"\x80\x04})" + b"\x85" * 100_000 + b"Ns.",
    "list as a key": b"\x80\x04}]Ns.",
    "append to a tuple": b"\x80\x04)Na.",
    "items of a list": b"\x80\x04]NNs.",
    "nothing on the stack": b"\x80\x04.",
    "more than one value": b"\x80\x04NN.",
    "append to nothing": b"\x80\x04Na.",
    "items without a mark": b"\x80\x04}u.",
    "odd items": b"\x80\x04}(Nu.",
    "text that is no utf-8": b"\x80\x04\x8c\x01\xff.",
    "protocol of the future": b"\x80\x7fN.",
    "cut off": pickle.dumps({"segments": [], "device_traces": []})[:-1],
    "empty": b"",
    "text": b"Dear diary,\n",
    "zip": b"PK\x03\x04 torch.save writes this",
    "plain but no snapshot": pickle.dumps({"a": 1}),
    "a number": pickle.dumps(7),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(name, tmp_path, monkeypatch, capsys):
    """Exit code 1 and one line. No code runs, all files stay as they are, and claimed lengths take no memory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapshot.pickle").write_bytes(HOSTILE[name])
    assert main(["import", "snapshot.pickle"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("memwatch: error: snapshot.pickle is not imported: ")
    assert said.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot.pickle"]


def test_the_files_are_hostile(tmp_path):
    """Python's own unpickler runs the code in these files, so the test would catch a reader that lets them through."""
    script = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    for name in ("os.system", "eval", "stack global"):
        (tmp_path / "file").write_bytes(HOSTILE[name])
        subprocess.run([sys.executable, "-c", script, "file"], cwd=tmp_path, check=False)
        assert (tmp_path / MARK_FILE).exists(), name
        (tmp_path / MARK_FILE).unlink()


def test_a_registered_extension_is_not_looked_up():
    """A program that registered an extension code does not thereby open the door."""
    copyreg.add_extension("os", "system", 0xF0)
    try:
        with pytest.raises(SnapshotError, match="EXT1"):
            read_plain_pickle(HOSTILE["extension 1"])
    finally:
        copyreg.remove_extension("os", "system", 0xF0)


@pytest.mark.parametrize("name", [name for name in HOSTILE if " of " in name or name.startswith("memo")])
def test_a_claimed_length_takes_no_memory(name):
    """A length or number in the file is compared with the file's size before memory is allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError):
            read_plain_pickle(HOSTILE[name])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_too_many_containers_are_refused(monkeypatch):
    """Containers take most memory for a byte of the file; their number is limited, marks included."""
    monkeypatch.setattr("memwatch.memory_snapshot.plain_pickle.MOST_CONTAINERS", 1000)
    for data in (b"\x80\x04" + b"}" * 1001, b"\x80\x04" + b"(" * 1001, b"\x80\x04)" + b"\x85" * 1001):
        with pytest.raises(SnapshotError, match="more than 1,000"):
            read_plain_pickle(data)


def test_every_opcode_that_is_known_makes_plain_data():
    """The reader knows exactly the opcodes of pickletools that make or move containers, numbers, text or bytes."""
    from memwatch.memory_snapshot.plain_pickle import _HANDLERS

    names = {opcode.name for opcode in pickletools.opcodes if ord(opcode.code) in _HANDLERS}
    dangerous = {
        "GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "EXT1", "EXT2", "EXT4",
        "PERSID", "BINPERSID", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER", "FROZENSET", "EMPTY_SET", "ADDITEMS",
    }  # fmt: skip
    assert len(names) == len(_HANDLERS)
    assert not names & dangerous
