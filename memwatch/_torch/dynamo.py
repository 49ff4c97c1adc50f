"""torch.compile: how dynamo handles frames. Importing this file does not import `torch._dynamo`, which takes seconds.

| torch | here |
| --- | --- |
| torch._C._dynamo.eval_frame.get_eval_frame_callback | frame_callback |
| torch._C._dynamo.eval_frame.set_code_exec_strategy(code, SKIP) | skip_frames_of(code) |
| torch._C._dynamo.eval_frame.reset_code | forget_code(code) |
| torch._dynamo.disable | disabled(function) |
| torch._dynamo.eval_frame.innermost_fn | function_that_enables() |
| torch._TorchCompileWrapper | compiling_wrapper() |
| torch._dynamo.resume_execution.TORCH_DYNAMO_RESUME_IN_PREFIX | is_resumed() |
| sys.modules["torch._dynamo.eval_frame"] | loaded_eval_frame() |
| torch._dynamo.callback.callback_handler, torch._dynamo.exc.Unsupported, BackendCompilerFailed | \
call_on_uncompiled_frame(call) |
| torch._dynamo.exc.SkipFrame | skip_frame_exception() |
| torch._dynamo.utils.numpy_to_tensor_wrapper, ... | computes_as_numpy(graph) |
| "compiler_fn" and "code" of convert_frame's `_compile` | (there) |
| "set_eval_frame", "_maybe_set_eval_frame", "compile_wrapper" | SET_CALLBACK, RESTORE_CALLBACK, COMPILED_WRAPPER |
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.lookup import Part
from memwatch.signal_handlers import raised_by_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType, ModuleType

    from torch import fx

_callback: Final = Part("dynamo may try to compile code of memwatch, which costs time")
frame_callback: Final[Callable[[], Any]] = _callback.take(
    "torch._C._dynamo.eval_frame.get_eval_frame_callback", lambda: None
)
"""Return dynamo's callback for the frames of this thread. None if dynamo does not evaluate them."""
_set_strategy: Final[Callable[[CodeType, Any], None]] = _callback.take(
    "torch._C._dynamo.eval_frame.set_code_exec_strategy", lambda code, strategy: None
)
_Strategy: Final[Callable[[Any, Any], Any]] = _callback.take(
    "torch._C._dynamo.eval_frame._FrameExecStrategy", lambda here, inside: None
)
_SKIP: Final[Any] = _callback.take("torch._C._dynamo.eval_frame._FrameAction.SKIP", None)


def skip_frames_of(code: CodeType) -> None:
    """Make dynamo skip frames of this code and everything that they call."""
    if _callback.complete:
        _set_strategy(code, _Strategy(_SKIP, _SKIP))


SET_CALLBACK, RESTORE_CALLBACK = "set_eval_frame", "_maybe_set_eval_frame"
"""Functions of dynamo's module with which a compiled function disables and restores frame evaluation."""
COMPILED_WRAPPER: Final = "compile_wrapper"
"""The name of the function through which a compiled function is called."""
_calls: Final = Part(
    "calls of compiled functions are not noted, and functions may compile anew inside a profile"
)


def loaded_eval_frame() -> ModuleType | None:
    """Return dynamo's module if it is imported and has the names above, or else None."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    if module is not None and not _calls.asked:
        _look_up_calls()
    return module if _calls.complete else None


def _look_up_calls() -> None:
    for path in (
        "torch._dynamo.eval_frame.set_eval_frame",
        "torch._dynamo.eval_frame._maybe_set_eval_frame",
        "torch._dynamo.eval_frame.skip_code",
    ):
        _calls.take(path, None)
    maker: Any = _calls.take("torch._dynamo.eval_frame._TorchDynamoContext.__call__.__code__", None)
    if maker is not None and not any(
        getattr(inner, "co_name", "") == COMPILED_WRAPPER for inner in maker.co_consts
    ):
        _calls.lacking.append(COMPILED_WRAPPER)


_disabling: Final = Part("dynamo may compile code of memwatch that runs under a mode")


def disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function in a form that dynamo does not compile. This imports dynamo."""
    disable: Any = _disabling.take("torch._dynamo.disable", lambda function: function)
    result: Callable[..., Any] = disable(function)
    return result


_enabling: Final = Part("a graph of a compiled callable is called through one function more")


def function_that_enables() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a function that undoes `disabled`, for calls from code that dynamo skips. This imports dynamo."""
    innermost: Any = _enabling.take("torch._dynamo.eval_frame.innermost_fn", lambda function: function)
    result: Callable[[Callable[..., Any]], Callable[..., Any]] = innermost
    return result


_wrapper: Final[Any] = Part("compiled functions that are given the same options do not share a budget").take(
    "torch._TorchCompileWrapper", None
)


def compiling_wrapper() -> Any:
    """Return the object of the `torch.compile` call whose backend is running, or None."""
    frame = sys._getframe(1)
    while frame is not None and _wrapper is not None:
        if frame.f_code is _wrapper.__call__.__code__:
            return frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]
    return None


_RESUMED: Final = "torch_dynamo_resume_in"


def is_resumed() -> bool:
    """Return True if a graph runs after a graph break of its compiled function."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != COMPILED_WRAPPER:
        if frame.f_code.co_name.startswith(_RESUMED):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_frames: Final = Part("the backend runs functions that call NumPy as dynamo translates them")
_NUMPY_WRAPPERS: Final = tuple(
    f"torch._dynamo.utils.numpy_{name}_wrapper" for name in ("to_tensor", "method", "operator", "attr")
)


def skip_frame_exception() -> type[Exception] | None:
    """Return the exception with which a backend makes dynamo skip a frame. This imports dynamo."""
    skip: Any = _frames.take("torch._dynamo.exc.SkipFrame", None)
    return skip  # type: ignore[no-any-return]  # torch has a class there


def computes_as_numpy(nodes: Iterable[fx.Node]) -> bool:
    """Return True if a node is a call of NumPy, which dynamo translates to ops of torch. This imports dynamo."""
    found: list[Any] = [_frames.take(path, None) for path in _NUMPY_WRAPPERS]
    classes = tuple(each for each in found if isinstance(each, type))
    functions = [each for each in found if callable(each) and not isinstance(each, type)]
    return any(isinstance(node.target, classes) or node.target in functions for node in nodes)


_given_up: Final = Part(
    "a budget may leave out code that torch.compile does not compile, and no warning appears"
)
_reset_code: Final[Callable[[CodeType], None]] = _given_up.take(
    "torch._C._dynamo.eval_frame.reset_code", lambda code: None
)
_PENDING: Final = "_CompilationCallbackHandler__pending_callbacks_counter"


def call_on_uncompiled_frame(call: Callable[[Any, CodeType, str], None]) -> None:
    """Call a function when dynamo gives up on a frame, which then runs uncompiled. This imports dynamo.

    Args:
        call: called with the object that would have called the backend, the code of the frame, and dynamo's reason. If
            it raises, the program gets the error as an error of the backend.
    """
    handler: Any = _given_up.take("torch._dynamo.callback.callback_handler", None)
    unsupported: Any = _given_up.take("torch._dynamo.exc.Unsupported", None)
    failed: Any = _given_up.take("torch._dynamo.exc.BackendCompilerFailed", None)
    if not _given_up.complete:
        return

    def ended(_: object) -> None:
        error = sys.exc_info()[1]
        compiling = _frame_of("_compile") if isinstance(error, unsupported) else None
        if compiling is None:
            return
        owner: Any = getattr(compiling.f_locals.get("compiler_fn"), "_torchdynamo_orig_backend", None)
        try:
            call(owner, compiling.f_locals["code"], str(error).partition("\n")[0])
        except Exception as refusal:
            of_handler = raised_by_handler(refusal)
            # otherwise the handler would count this compilation as still running, and make no more calls
            setattr(handler, _PENDING, getattr(handler, _PENDING, 1) - 1)
            if of_handler:
                raise
            raise _as_backends(refusal, failed, owner.compiler_fn) from refusal

    handler.register_end_callback(ended)
    clear = handler.clear

    def clear_others() -> None:
        clear()  # `torch._dynamo.reset()` does so
        handler.register_end_callback(ended)

    handler.clear = clear_others


def forget_code(code: CodeType) -> None:
    """Make dynamo ask again about a code object that it gave up on. Otherwise it runs it uncompiled without a word."""
    _reset_code(code)


def _as_backends(error: Exception, failed: Any, backend: Any) -> Exception:
    """Return the error with a second class, the class of backend errors, because dynamo lets these pass."""
    kind = type(type(error).__name__, (type(error), failed), {"__init__": failed.__init__})
    found: Exception = kind(backend, error, None)
    vars(found).update(vars(error))
    found.args = error.args
    return found


def _frame_of(name: str) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not (frame.f_code.co_name == name and "compiler_fn" in frame.f_locals):
        frame = frame.f_back
    return frame
