"""`memwatch attach` records a stretch of a process that runs already, and that process does not notice."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import attached_programs
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch.attach.channel import Channel, socket_path
from memwatch.attach.listener import _ClientGoneError, _Stretch
from memwatch.attach.quiet_points import PLAIN, TorchState, is_between_calls, obstacle
from memwatch.cli.main import main

PROGRAMS = Path(attached_programs.__file__)
ROOT = PROGRAMS.parents[2]
LET_IN = "from memwatch.attach.listener import let_in; let_in(); "
RUN = "import attached_programs; attached_programs.main()"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="attach needs Linux")


class Target:
    """A program that runs in a process of its own, and lets clients in.

    Attributes:
        peak_bytes: the peak of each step by the allocator's account.
    """

    def __init__(self, program, begin=LET_IN):
        paths = [str(ROOT), str(ROOT / "tests"), str(PROGRAMS.parent)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", begin + RUN, program], env=environment, **pipes
        )
        pid, peak = self.process.stdout.readline().split()
        self.pid, self.peak_bytes = int(pid), int(peak)

    def end(self):
        """Let the program end; return its last line, and its text on standard error."""
        return self.process.communicate()


@contextlib.contextmanager
def target_of(program, begin=LET_IN):
    target = Target(program, begin)
    try:
        yield target
    finally:
        target.process.kill()
        target.process.communicate()


@pytest.fixture(scope="module")
def training():
    with target_of("training") as target:
        yield target


def attach(target, *words):
    return main(["attach", str(target.pid), *words])


@pytest.mark.parametrize("extent", [["--steps", "3"], ["--seconds", "1"]])
def test_the_peak_of_a_training_is_the_allocators(extent, training, tmp_path, capsys):
    file = tmp_path / "a.memwatch"
    assert attach(training, *extent, "-o", str(file)) == 0
    reading = memwatch.load(file)
    assert reading.peak_bytes == training.peak_bytes
    assert reading.meta["complete"]
    assert reading.meta["pid"] == training.pid
    out, err = capsys.readouterr()
    assert out.startswith("Peak ")
    assert [line.split(" (")[0] for line in err.splitlines()][-1] == f"memwatch: wrote {file}"


def test_what_was_there_before_is_the_baseline_with_its_holder(training, tmp_path):
    assert attach(training, "--steps", "1", "-o", str(tmp_path / "a.memwatch")) == 0
    at_peak = memwatch.load(tmp_path / "a.memwatch").at_peak
    (kept,) = at_peak[at_peak.nbytes == attached_programs.KEPT.nbytes].itertuples()
    assert "KEPT" in kept.holder
    assert kept.holder_evidence == "seen"
    assert {"parameter", "optimizer state"} <= set(at_peak.category)


def test_a_second_attach_is_refused_with_one_line(training, tmp_path, capsys):
    connection = socket.socket(socket.AF_UNIX)
    with connection:
        connection.connect(str(socket_path(training.pid, os.geteuid())))
        channel = Channel(connection)
        channel.send(
            memwatch=memwatch.__version__, seconds=600, steps=None, output=str(tmp_path / "a.memwatch")
        )
        assert channel.receive(None)["event"] == "heard"
        assert attach(training, "-o", str(tmp_path / "b.memwatch")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "another attach records it already" in line
    assert not (tmp_path / "b.memwatch").exists()


def test_a_client_that_leaves_ends_the_recording(training, tmp_path):
    """The next client is served: the recording of the client that left is over."""
    for _ in range(100):
        if attach(training, "--steps", "1", "-f", "-o", str(tmp_path / "next.memwatch")) == 0:
            return
    pytest.fail("the process is still taken")


@pytest.mark.whole
def test_a_loop_that_stays_in_c_plus_plus_is_recorded_when_it_returns(tmp_path, capsys):
    with target_of("scripted") as target:
        assert attach(target, "--seconds", "1", "-o", str(tmp_path / "a.memwatch")) == 0
    assert memwatch.load(tmp_path / "a.memwatch").peak_bytes == target.peak_bytes
    err = capsys.readouterr().err  # at the beginning or at the end
    assert f"process {target.pid} has not returned to Python code at {PROGRAMS}:" in err


class Client:
    """A client in a thread, which records a target into a file until that ends."""

    def __init__(self, target, file):
        self.codes = []
        self._thread = threading.Thread(
            target=lambda: self.codes.append(attach(target, "--seconds", "600", "-o", str(file)))
        )
        self._thread.start()
        while not self._has_ops(file):
            time.sleep(0.05)

    @staticmethod
    def _has_ops(file):
        try:
            return file.exists() and len(memwatch.load(file).ops) > 0
        except memwatch.CaptureError:  # the client has made the file, and has not written its head yet
            return False

    def wait(self):
        """Return its exit code, once it has one."""
        self._thread.join()
        return self.codes[0]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return a training that was recorded three times, its last line, its errors, and the output of the last client."""
    folder = tmp_path_factory.mktemp("ended")
    with target_of("training") as target:
        for number in range(2):
            assert attach(target, "--steps", "1", "-o", str(folder / f"{number}.memwatch")) == 0
        client = Client(target, folder / "last.memwatch")
        out, err = target.end()
        assert client.wait() == 0
    return target, out, err, folder / "last.memwatch"


def test_the_program_computes_what_it_computes_alone(ended):
    target, out, err, _ = ended
    assert target.process.returncode == 0
    # its own torch profiler's
    assert [line for line in err.splitlines() if not line.startswith("USDT:")] == []
    steps, digest = out.split()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, step = attached_programs.make_training()
    for _ in range(int(steps)):
        step()
    torch.set_num_threads(threads)
    assert attached_programs.digest(model) == digest


def test_a_process_that_ends_leaves_a_whole_capture_and_no_socket(ended):
    target, _, _, file = ended
    reading = memwatch.load(file)
    assert reading.meta["complete"]
    assert reading.peak_bytes == target.peak_bytes
    assert not socket_path(target.pid, os.geteuid()).exists()


def test_what_a_killed_process_recorded_is_kept(tmp_path, capsys):
    with target_of("training") as target:
        client = Client(target, tmp_path / "a.memwatch")
        target.process.kill()
        assert client.wait() == 0
    out, err = capsys.readouterr()
    assert out.startswith("Peak ")
    assert err.count("ended while it was recorded") == 1
    assert not memwatch.load(tmp_path / "a.memwatch").meta["complete"]


def one_line(capsys, *words):
    assert main(["attach", *map(str, words)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_process_that_has_ended_gets_one_line(capsys):
    process = subprocess.Popen(["true"])
    process.wait()
    assert f"there is no process {process.pid}" in one_line(capsys, process.pid)


def test_a_process_without_torch_gets_one_line(capsys):
    with subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE) as process:
        assert "has not loaded torch" in one_line(capsys, process.pid)
        process.stdin.close()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="sys.remote_exec came with Python 3.14")
def test_any_process_of_a_new_python_is_recorded(tmp_path):
    with target_of("training", begin="") as target:
        assert attach(target, "--steps", "2", "-o", str(tmp_path / "a.memwatch")) == 0
        assert target.end()[0].split()
    assert memwatch.load(tmp_path / "a.memwatch").peak_bytes == target.peak_bytes


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 lets its user in")
def test_a_process_that_lets_nobody_in_is_told_how_to_start(capsys):
    line = one_line(capsys, os.getpid())
    assert f"memwatch cannot attach to process {os.getpid()}; start it as `MEMWATCH=attach " in line


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 lets its user in")
def test_the_arguments_of_a_process_are_not_printed(capsys):
    """They may hold passwords."""
    code = "import torch; print('ready', flush=True); input()"
    words = [sys.executable, "-c", code, "--token", "secret-1234"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        line = one_line(capsys, process.pid)
        process.stdin.close()
    assert os.path.basename(sys.executable) in line
    assert "secret" not in line


def test_the_process_of_another_user_gets_one_line(capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    line = one_line(capsys, os.getpid())
    assert f"process {os.getpid()} belongs to " in line


def test_a_file_that_exists_stays_as_it_is(training, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    assert attach(training, "-o", str(tmp_path / "mine")) == 1
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_cannot_reach_the_socket(training):
    path = str(socket_path(training.pid, os.geteuid()))
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setuid(65534)
            socket.socket(socket.AF_UNIX).connect(path)
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def found():
    """Return the obstacle here."""
    return obstacle(sys._getframe(1), PLAIN)


def in_backward(note):
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda _: note())
    tensor.sum().backward()


def in_hooks(note):
    with torch.autograd.graph.save_on_cpu():
        note()


def in_mode(note):
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        pass

    with Mode():
        note()


def in_checkpoint(note):
    def run(tensor):
        note()
        return tensor * 2

    checkpoint(run, torch.ones(1, requires_grad=True), use_reentrant=False)


def in_step(note):
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    optimizer.register_step_post_hook(lambda *_: note())
    optimizer.step()


def in_transform(note):
    torch.vmap(lambda tensor: (note(), tensor)[1])(torch.ones(2))


@pytest.mark.parametrize(
    "inside",
    [in_backward, in_hooks, in_mode, in_checkpoint, in_step, in_transform],
    ids=lambda each: each.__name__,
)
def test_no_recording_begins_where_the_program_would_notice(inside):
    seen = []
    inside(lambda: seen.append(found()))
    assert seen
    assert all(seen)
    assert found() == ""


def test_a_recording_ends_outside_what_the_program_has_opened_since():
    with memwatch.profile():
        began = TorchState.here()
        assert obstacle(sys._getframe(), began) == ""
        with torch.autograd.graph.save_on_cpu():
            assert obstacle(sys._getframe(), began) != ""
        assert obstacle(sys._getframe(), began) == ""


def test_a_forward_is_no_place_between_calls():
    seen = []
    layer = torch.nn.ReLU()
    hook = layer.register_forward_hook(lambda *_: seen.append(is_between_calls(sys._getframe())))
    layer(torch.ones(1))
    assert seen == [False]
    hook.remove()
    layer.apply(lambda _: seen.append(is_between_calls(sys._getframe())))  # in the same file of torch
    assert seen == [False, True]
    assert is_between_calls(sys._getframe())


def test_a_client_that_leaves_before_the_recording_begins_gets_none(tmp_path):
    """Each try to begin finds an obstacle. The thread must not go on trying for a client that is gone."""
    server, client = socket.socketpair()
    client.close()
    request = {"memwatch": memwatch.__version__, "output": str(tmp_path / "never.memwatch")}
    stretch = _Stretch(Channel(server), request)
    tried = []

    def refuse(_frame, _waited_s):
        tried.append(True)
        return "is in a backward" if len(tried) < 50 else ""

    def serve():
        with pytest.raises(_ClientGoneError):
            stretch._in_main_thread(refuse)
        ended.append(True)

    ended = []
    thread = threading.Thread(target=serve)
    thread.start()
    while thread.is_alive():  # pending calls run between the instructions of the main thread
        thread.join(0.01)
    server.close()
    assert ended
    assert 0 < len(tried) < 50
