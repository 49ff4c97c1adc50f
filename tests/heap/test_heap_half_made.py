"""Tuples and lists that C code has not filled: to iterate over a place without an object ends the process."""

from __future__ import annotations

import itertools

import torch
from sampled_ops import sample_every_op

import memwatch


def exhausted_product():
    """Return an iterator that keeps a result with two places; one of them was never filled."""
    product = itertools.product([torch.ones(2048)], [])
    assert next(product, None) is None
    return product


def test_a_sample_passes_by_a_result_that_was_never_filled():
    product = exhausted_product()
    with sample_every_op(deep_every=2) as samples, memwatch.profile() as prof:
        kept = torch.ones(4096) + 1
    assert samples[0] > 1
    assert set(prof.at_peak["holder_kind"]) != {"not seen"}
    del kept, product


def test_a_tuple_that_runs_code_while_it_is_filled_is_passed_by():
    """`tuple(generator)` shows gc the tuple before its places are filled."""
    with sample_every_op(deep_every=2) as samples, memwatch.profile():
        kept = tuple(torch.ones(2048) * factor for factor in range(20))
    assert samples[0] > 20
    del kept


def test_a_leak_in_a_result_that_was_never_filled_is_found():
    kept = []
    leaks = memwatch.find_leaks(lambda: kept.append(exhausted_product()))
    assert sum(leak.nbytes for leak in leaks) > 0
