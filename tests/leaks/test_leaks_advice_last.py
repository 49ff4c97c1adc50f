"""Advice that is tested by following it: for holders in C code or in a running call, for cycles, for every rule."""

from __future__ import annotations

import collections
import concurrent.futures
import ctypes
import inspect
import itertools
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.words.leaks import advice

sys.path.insert(0, str(Path(__file__).parent))
import test_leaks_advice
import test_leaks_advice_of_growing
import test_leaks_advice_of_objects
import test_leaks_advice_of_values
import test_leaks_advice_taken
import test_leaks_cuts
from expected_remedies import REMEDIES


def data():
    return torch.ones(64)


class Child(nn.Module):
    """Has its parent, as a submodule or by a function that gives it."""

    def __init__(self, parent):
        super().__init__()
        self.parent = parent


def child_that_registers_its_parent():
    parent = nn.Linear(8, 8)
    parent.child = Child(parent)


def child_with_a_weak_reference():
    parent = nn.Linear(8, 8)
    parent.child = Child(weakref.ref(parent))


class Friends(set):
    """A set that may have itself as a member."""

    __hash__ = object.__hash__


def set_in_itself():
    friends = Friends()
    friends.add(friends)
    friends.photo = data()


def set_in_itself_discarded():
    friends = Friends()
    friends.add(friends)
    friends.photo = data()
    friends.discard(friends)


class Steps(itertools.accumulate):
    """An iterator whose total so far only C code sees."""


def total_that_is_its_own_iterator(*, cut=False):
    source = [None, None]
    steps = Steps(source)
    source[0] = steps
    steps.weights = data()
    next(steps)
    source.clear()
    if cut:
        steps.__setstate__(None)


def attribute_of_what_vmap_wraps():
    batch = data()

    def traced(row):
        batch.last_row = row
        return row * 2

    torch.func.vmap(traced)(batch)


def row_is_returned():
    torch.func.vmap(lambda row: (row, row * 2))(data())


LOOPS = [
    (Remedy.SUBMODULE_IN_CYCLE, child_that_registers_its_parent, child_with_a_weak_reference),
    (Remedy.MEMBER_IN_CYCLE, set_in_itself, set_in_itself_discarded),
    (Remedy.ANY, total_that_is_its_own_iterator, lambda: total_that_is_its_own_iterator(cut=True)),
    (Remedy.FUNCTORCH, attribute_of_what_vmap_wraps, row_is_returned),
]


def test_a_loop_is_gone_when_its_advice_is_taken():
    """Each cycle gets the advice for the objects in it, not for the objects that it holds."""
    leaks = find_leaks(lambda: [leak() for _, leak, _ in LOOPS] and None)
    assert collections.Counter(leak.advice for leak in leaks) == {advice(remedy): 1 for remedy, _, _ in LOOPS}
    assert [str(leak) for leak in find_leaks(lambda: [mended() for _, _, mended in LOOPS] and None)] == []


class Statistics(TorchDispatchMode):
    """A mode that has a tensor."""

    def __init__(self):
        super().__init__()
        self.total = data()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def doubling_hooks():
    factor = data()
    return saved_tensors_hooks(lambda saved: (saved, factor), lambda packed: packed[0])


def half_precision():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("remedy", "context"),
    [
        (Remedy.C_CODE, half_precision),
        (Remedy.FUNCTION_IN_C, doubling_hooks),
        (Remedy.OPEN_CONTEXT, Statistics),
    ],
)
def test_a_context_that_stays_open_is_left_as_told(remedy, context):
    """Entered contexts stay in torch, with the tensors that it casts meanwhile. C code alone has the lower hooks."""

    def entered():
        context().__enter__()
        nn.Linear(8, 8)(torch.ones(1, 8))

    def left():
        with context():
            nn.Linear(8, 8)(torch.ones(1, 8))

    def in_one_pass():
        with pytest.raises(TensorLeakError) as caught, check_leaks():
            entered()
        return caught.value.leaks

    def both_ways():
        return find_leaks(entered), in_one_pass()

    # a context that a thread enters ends with the thread
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        by_calls, by_pass = executor.submit(both_ways).result()
        torch.clear_autocast_cache()
    assert {leak.advice for leak in by_calls} == {advice(remedy)}, [str(leak) for leak in by_calls]
    # one pass looks at the newest hooks alone, which torch shows
    told_by_pass = Remedy.OPEN_CONTEXT if remedy is Remedy.FUNCTION_IN_C else remedy
    assert {leak.advice for leak in by_pass} == {advice(told_by_pass)}, [str(leak) for leak in by_pass]
    with check_leaks():
        left()
    assert find_leaks(left) == []


def test_a_list_whose_reference_c_code_does_not_give_back():
    """No list grows: to bound it would change nothing."""
    lists = []

    def lost(*, give_back):
        entry = [data()]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(entry))
        if give_back:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(entry))
        else:
            lists.append(id(entry))

    [leak] = find_leaks(lambda: lost(give_back=False))
    assert leak.advice == advice(Remedy.C_CODE)
    assert find_leaks(lambda: lost(give_back=True)) == []
    for address in lists:
        ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(address))


def kept_by_a_name_of(call):
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        call()
    [leak] = caught.value.leaks
    return leak.advice


def test_a_variable_of_a_running_call_is_deleted_as_told():
    """One pass reports the first value of a name. After `del`, or None, nothing is left."""
    latest = None

    def step(*, delete):
        nonlocal latest
        latest = data()
        if delete:
            del latest

    assert kept_by_a_name_of(lambda: step(delete=False)) == advice(Remedy.LOCAL)
    latest = None
    with check_leaks():
        step(delete=True)


def test_an_argument_of_a_running_call_is_deleted_as_told():
    """As a variable is."""

    def call(latest):
        def step(*, delete):
            nonlocal latest
            latest = data()
            if delete:
                del latest

        assert kept_by_a_name_of(lambda: step(delete=False)) == advice(Remedy.ARGUMENT)
        latest = None
        with check_leaks():
            step(delete=True)

    call(None)


def test_of_a_sum_in_a_variable_of_a_running_call_the_graph_is_told():
    """The variable has one value. To delete it does not help; to detach the added losses does."""
    total = torch.zeros(64)

    def add(*, detach):
        nonlocal total
        loss = data().requires_grad_() * 2
        total = total + (loss.detach() if detach else loss)

    [leak] = find_leaks(lambda: add(detach=False))
    assert leak.advice == advice(Remedy.GRAPH)
    total = torch.zeros(64)
    assert find_leaks(lambda: add(detach=True)) == []


HAVE_A_TEST = {
    Remedy.EXECUTOR: test_leaks_advice.test_calls_that_wait_in_an_executor,
    Remedy.MODULE_HOOK: test_leaks_advice.test_what_a_hook_from_before_the_pass_collects_goes_with_its_handle,
    Remedy.LAST_EXCEPTION: test_leaks_advice_taken.test_the_last_error_of_a_shell_is_dropped_as_told,
    Remedy.OUTPUT_HISTORY: test_leaks_advice_taken.test_what_a_shell_displayed_is_reset_as_told,
    Remedy.IPYTHON_RESULT: test_leaks_advice_taken.test_ipython_alone_is_told_to_end_the_line_with_a_semicolon,
    Remedy.MOCK: test_leaks_advice_taken.test_a_mock_is_reset_as_told,
    Remedy.LOCAL: test_a_variable_of_a_running_call_is_deleted_as_told,
    Remedy.ARGUMENT: test_an_argument_of_a_running_call_is_deleted_as_told,
    Remedy.CTX_OBJECT: test_leaks_cuts.test_what_is_no_tensor_cannot_be_saved_for_backward,
    Remedy.CLOSURE_OF_OBJECT: (
        test_leaks_advice_of_objects.test_a_registered_function_is_told_to_hold_its_object_weakly
    ),
    Remedy.ATTRIBUTE: test_leaks_advice_of_objects.test_an_object_around_another_one_of_its_class_is_no_chain,
    Remedy.PICKLER: test_leaks_advice_taken.test_a_pickler_that_collects_is_to_clear_its_memo,
    Remedy.TEE: test_leaks_advice_of_growing.test_a_branch_of_tee_that_lags_is_to_be_deleted,
    Remedy.KEPT_KEYS: test_leaks_advice_of_growing.test_the_list_that_keeps_the_weak_keys_is_named,
    Remedy.VALUE_OF_TENSORS: (
        test_leaks_advice_of_growing.test_a_table_with_tensors_as_keys_is_to_have_keys_that_come_again
    ),
    Remedy.CHAIN: test_leaks_advice_of_values.test_a_chain_of_objects_is_named_by_its_attribute,
    Remedy.NESTED: test_leaks_advice_of_values.test_an_iterator_around_the_one_of_the_call_before_is_no_container,
    Remedy.CLOSURE_CELL: (
        test_leaks_advice_taken.test_of_a_function_under_a_new_name_the_captured_variable_is_named
    ),
    Remedy.UNFINISHED_RESULT: (
        test_leaks_advice_of_values.test_the_list_of_a_comprehension_is_told_as_an_unfinished_result
    ),
    Remedy.C_CODE: test_a_list_whose_reference_c_code_does_not_give_back,
}
OPEN_CONTEXTS = {
    Remedy.FUNCTION_IN_C,
    Remedy.OPEN_CONTEXT,
}  # of `test_a_context_that_stays_open_is_left_as_told`


def test_every_rule_of_advice_has_a_program_that_takes_it():
    """The program is here, in the other advice tests, or the twin of a leak program.

    An untested rule may not help at all.
    """
    tables = [*LOOPS, *test_leaks_advice.RULES, *test_leaks_advice_taken.RULES]
    taken = {remedy for remedy, _, _ in tables} | set(REMEDIES.values())
    assert [
        remedy for remedy, test in HAVE_A_TEST.items() if str(remedy) not in inspect.getsource(test)
    ] == []
    assert taken | set(HAVE_A_TEST) | OPEN_CONTEXTS == set(Remedy)
