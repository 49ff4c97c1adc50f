"""Recorded processes that SIGTERM or SIGHUP ends, as the end of `with Pool()` does: nothing is lost."""

from __future__ import annotations

import signal

import pytest

import memwatch

POOL = """
import multiprocessing, torch

def work(count):
    return float(torch.ones(count).exp().sum())

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(work, [1000, 3000])
"""
ARRANGED = """
import os, signal, sys, threading, time
ENDING = signal.Signals(int(sys.argv[1]))
from memwatch.children.termination import WriteBeforeTermination

def write():
    time.sleep(0.1)
    print("written", flush=True)

termination = WriteBeforeTermination(write)
"""
BLOCKED = """
termination.arrange()
threading.Timer(0.2, os.kill, (os.getpid(), ENDING)).start()
import ctypes
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
library.pthread_mutex_lock(mutex)
library.pthread_mutex_lock(mutex)  # no signal ends this wait
"""
OWN = """
signal.signal(ENDING, lambda *_: print("own", flush=True))
termination.arrange()
os.kill(os.getpid(), ENDING)
"""
LATER = """
termination.arrange()
before = signal.getsignal(ENDING)
signal.signal(ENDING, lambda *arrived: before(*arrived) if callable(before) else None)
os.kill(os.getpid(), ENDING)
time.sleep(0.3)
termination.restore()
print("goes on", flush=True)
"""
FORKED = """
termination.arrange()
for _ in range(20):
    child = os.fork()
    if child == 0:
        time.sleep(60)
    os.kill(child, ENDING)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -ENDING
assert ENDING not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
termination.restore()
print(signal.getsignal(ENDING) == signal.SIG_DFL, signal.set_wakeup_fd(-1), flush=True)
"""

both_signals = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])


def test_workers_of_a_pool_write_what_they_recorded_before_they_are_ended(shell_memwatch, tmp_path):
    """The pool ends its worker by SIGTERM within its first second; its capture has every op of it."""
    (tmp_path / "program.py").write_text(POOL)
    done = shell_memwatch("run", "--children", "-o", "a.memwatch", "program.py")
    assert done.returncode == 0, done.stderr
    (worker,) = tmp_path.glob("a.*.memwatch")
    assert memwatch.load(worker).peak_bytes == 2 * 4 * 3000


@both_signals
def test_what_waits_in_c_is_ended_too_by_the_same_signal(number, fresh_python):
    """The process ends even if its main thread does not run Python."""
    done = fresh_python(ARRANGED + BLOCKED, str(int(number)))
    assert (done.returncode, done.stdout) == (-number, "written\n")


@both_signals
def test_a_program_s_own_handler_is_left_alone(number, fresh_python):
    """An earlier handler stays. A later handler may call the earlier one, and the program goes on."""
    done = fresh_python(ARRANGED + OWN, str(int(number)))
    assert (done.returncode, done.stdout) == (0, "own\n")
    done = fresh_python(ARRANGED + LATER, str(int(number)))
    assert (done.returncode, done.stdout) == (0, "goes on\n")


@both_signals
def test_a_fork_and_the_end_are_as_without(number, fresh_python):
    """A fork dies of its own signal alone, without a word; afterwards the signal and the descriptor are as before."""
    done = fresh_python(ARRANGED + FORKED, str(int(number)))
    assert (done.returncode, done.stdout) == (0, "True -1\n")
