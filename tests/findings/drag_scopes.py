"""Context variables, errors, threads, comprehensions, nested calls that hold tensors, each with the program mended."""

from __future__ import annotations

import contextvars
import threading

from drag_frames import WIDE, block, heavy, sum_of_heavy

CACHE = contextvars.ContextVar("cache", default=None)


def context_variable():
    CACHE.set({"features": block(4 * WIDE)})
    CACHE.get()["features"].sum()
    heavy()
    CACHE.set(None)


def context_variable_reset():
    token = CACHE.set({"features": block(4 * WIDE)})
    CACHE.get()["features"].sum()
    CACHE.reset(token)
    del token
    heavy()


def comprehension_variable():
    return [heavy_after(part) for part in (block(4 * WIDE) for _ in range(2))]


def heavy_after(part):
    total = part.sum()
    heavy()
    return total


def comprehension_variable_boxed():
    return [heavy_after_box(box) for box in ([block(4 * WIDE)] for _ in range(2))]


def heavy_after_box(box):
    total = box.pop().sum()
    heavy()
    return total


def retry_with_last_error():
    last_error = None
    for _attempt in range(2):
        try:
            attempt_that_fails()
        except RuntimeError as error:
            last_error = error
    raise_or_go_on(last_error)


def attempt_that_fails():
    activations = block(4 * WIDE)
    activations.sum()
    raise RuntimeError("out of memory")


def raise_or_go_on(error):
    assert error is not None
    heavy()


def retry_with_text_only():
    last_error = None
    for _attempt in range(2):
        try:
            attempt_that_fails()
        except RuntimeError as error:
            last_error = str(error)
    raise_or_go_on(last_error)


def inside_except():
    try:
        attempt_that_fails()
    except RuntimeError:
        heavy()


def after_except():
    try:
        attempt_that_fails()
    except RuntimeError:
        pass
    heavy()


def thread_holds():
    ready, done = threading.Event(), threading.Event()

    def prefetch():
        prefetched = box.pop()
        ready.set()
        done.wait(10)
        del prefetched

    box = [block(4 * WIDE)]
    box[0].sum()
    worker_thread = threading.Thread(target=prefetch, name="prefetcher")
    worker_thread.start()
    ready.wait(10)
    heavy()
    done.set()
    worker_thread.join()


def thread_drops():
    ready, done = threading.Event(), threading.Event()

    def prefetch():
        prefetched = box.pop()
        del prefetched
        ready.set()
        done.wait(10)

    box = [block(4 * WIDE)]
    box[0].sum()
    worker_thread = threading.Thread(target=prefetch, name="prefetcher")
    worker_thread.start()
    ready.wait(10)
    heavy()
    done.set()
    worker_thread.join()


def star_in_between(*layers):
    return finish(*layers)


def finish(*layers):
    total = sum(layer.sum() for layer in layers)
    heavy()
    return total


def finish_box(layers):
    total = sum(layer.sum() for layer in layers)
    layers.clear()
    heavy()
    return total


def star_passed_on():
    return star_in_between(block(), block(), block())


def star_box():
    return finish_box([block(), block(), block()])


def sorted_key():
    return sorted(
        [block(2 * WIDE), block(2 * WIDE)], key=lambda tensor: float(tensor.sum()) + float(sum_of_heavy())
    )


def sorted_box():
    boxes = [[block(2 * WIDE)], [block(2 * WIDE)]]
    return sorted(boxes, key=lambda box: float(box.pop().sum()) + float(sum_of_heavy()))


# as in drag_frames
CASES = {
    "context variable": (context_variable, ("context variable `cache`",), context_variable_reset),
    "comprehension variable": (
        comprehension_variable,
        ("`part`", "heavy_after"),
        comprehension_variable_boxed,
    ),
    "last error": (retry_with_last_error, ("`last_error`", "retry_with_last_error"), retry_with_text_only),
    "inside except": (
        inside_except,
        ("`activations`", "attempt_that_fails", "RuntimeError that is being handled"),
        after_except,
    ),
    "thread": (thread_holds, ("`prefetched`", "prefetch", "prefetcher"), thread_drops),
    "star passed on": (star_passed_on, ("`*layers`, argument of `finish`",), star_box),
    "sort key": (sorted_key, ("`tensor`", "lambda"), sorted_box),
}
