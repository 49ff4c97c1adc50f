"""One line may add to several lists of one dictionary. A leak names them all."""

from __future__ import annotations

import torch

from memwatch.leaks import find_leaks

NAMES = ("loss", "score", "state")


def test_all_lists_of_a_dictionary_are_named():
    log = {name: [torch.ones(8)] for name in NAMES}

    def step():
        for number, name in enumerate(NAMES):
            log[name].append(torch.ones(256 * (number + 1)))

    (leak,) = find_leaks(step)
    told = [leak.holder, *leak.also]
    assert all(sum(repr(name) in words for words in told) == 1 for name in NAMES)


def test_beside_one_list_no_other_is_named():
    log = {"loss": [], "score": [torch.ones(8)]}
    (leak,) = find_leaks(lambda: log["loss"].append(torch.ones(256)))
    assert leak.also == ()
