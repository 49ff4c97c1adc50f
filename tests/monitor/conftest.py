"""The programs of these tests search the heap."""

from __future__ import annotations

import pytest


@pytest.fixture
def fresh_python(_forked_python):
    """Let programs fork from the process without pandas, like those of `memwatch leaks`: a search is quicker there.

    With `unfrozen=False`, gc lists no object that was there before the program.
    """

    def run(code, *arguments, unfrozen=True, **environment):
        server = "_leaks_fork_server" if unfrozen else "_fork_server"
        return _forked_python(server, code, *arguments, unfrozen=unfrozen, **environment)

    return run
