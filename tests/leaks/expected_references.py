"""The references that the path of each leak program must name, by kind and identifier; None for any identifier."""

from __future__ import annotations

from memwatch.kinds.edges import EdgeKind

EXPECTED: dict[str, tuple[tuple[EdgeKind, str | None], ...]] = {
    "tensor_hook": (
        (EdgeKind.CLOSURE_CELL, "y"),
        (EdgeKind.TENSOR_HOOKS, None),
    ),
    "tensor_hook_after_backward": (
        (EdgeKind.CLOSURE_CELL, "y"),
        (EdgeKind.TENSOR_HOOKS, None),
    ),
    "leaf_hook": (
        (EdgeKind.CLOSURE_CELL, "p"),
        (EdgeKind.TENSOR_HOOKS, None),
    ),
    "node_hook": (
        (EdgeKind.CLOSURE_CELL, "y"),
        (EdgeKind.NODE_HOOKS, None),
    ),
    "node_prehook": (
        (EdgeKind.CLOSURE_CELL, "y"),
        (EdgeKind.NODE_PREHOOKS, None),
    ),
    "metadata": (
        (EdgeKind.METADATA, None),
        (EdgeKind.VALUE, "'activation'"),
    ),
    "post_accumulate": (
        (EdgeKind.CLOSURE_CELL, "p"),
        (EdgeKind.ACCUMULATE_HOOKS, None),
    ),
    "optimizer_in_backward": (
        (EdgeKind.CLOSURE_CELL, "optimizers"),
        (EdgeKind.ACCUMULATE_HOOKS, None),
    ),
    "multi_grad_hook": (
        (EdgeKind.TENSOR_HOOKS, None),
        (EdgeKind.CLOSURE_CELL, "grad_fns"),
    ),
    "child_attribute": ((EdgeKind.ATTRIBUTE, "child"),),
    "accumulate_grad_attribute": ((EdgeKind.ATTRIBUTE, "accumulator"),),
    "create_graph": ((EdgeKind.GRAD, None),),
    "retain_grad_create_graph": ((EdgeKind.GRAD, None),),
    "saved_view": ((EdgeKind.SAVED, "tensors"),),
    "ctx_attribute": ((EdgeKind.ATTRIBUTE, "result"),),
    "ctx_attribute_with_consumer": ((EdgeKind.ATTRIBUTE, "result"),),
    "identity_pack": ((EdgeKind.PACKED, "result"),),
    "wrapping_pack": (
        (EdgeKind.PACKED, "result"),
        (EdgeKind.ATTRIBUTE, "tensor"),
    ),
    "save_on_cpu": ((EdgeKind.PACKED, "result"),),
    "function_class_per_call": ((EdgeKind.CLASS_ATTRIBUTE, "_forward_cls"),),
    "prehook_over_group": (
        (EdgeKind.CLOSURE_CELL, "group"),
        (EdgeKind.VALUE, "'intermediates'"),
        (EdgeKind.NODE_PREHOOKS, None),
    ),
    "last_and_all": (
        (EdgeKind.GLOBAL, "SERVER"),
        (EdgeKind.ATTRIBUTE, "all"),
    ),
    "beside_a_queue_that_drains": ((EdgeKind.GLOBAL, "KEPT"),),
    "numpy_view": (
        (EdgeKind.GLOBAL, "ARRAYS"),
        (EdgeKind.VALUE, "'pred'"),
        (EdgeKind.NUMPY_BASE, None),
    ),
    "dlpack_capsule": ((EdgeKind.GLOBAL, "KEPT"), (EdgeKind.SHARED_MEMORY, None)),
    "array_from_dlpack": (
        (EdgeKind.GLOBAL, "ARRAYS"),
        (EdgeKind.VALUE, "'pred'"),
        (EdgeKind.NUMPY_BASE, None),
        (EdgeKind.SHARED_MEMORY, None),
    ),
    "part_through_dlpack": ((EdgeKind.GLOBAL, "KEPT"),),
    "object_array": (
        (EdgeKind.GLOBAL, "KEPT"),
        (EdgeKind.ITEM, None),
    ),
    "data_frame": (
        (EdgeKind.GLOBAL, "KEPT"),
        (EdgeKind.ATTRIBUTE, "_mgr"),
        (EdgeKind.ITEM, None),
    ),
    "cycle_through_numpy": (
        (EdgeKind.ATTRIBUTE, "items"),
        (EdgeKind.ITEM, None),
    ),
    "module_per_call": ((EdgeKind.GLOBAL, "TABLE"),),
    "scopes": (
        (EdgeKind.GLOBAL, "SCOPES"),
        (EdgeKind.ATTRIBUTE, "maps"),
        (EdgeKind.VALUE, "'x'"),
    ),
    "tensor_attribute_cycle": ((EdgeKind.ATTRIBUTE, "me"),),
    "ctx_attribute_after_backward": ((EdgeKind.ATTRIBUTE, "result"),),
    "ctx_attribute_with_kept_consumer": ((EdgeKind.GLOBAL, "KEPT"),),
    "ctx_loop_through_a_consumer": ((EdgeKind.ATTRIBUTE, "result"),),
    "prehook_over_its_own_node": (
        (EdgeKind.CLOSURE_CELL, "group"),
        (EdgeKind.VALUE, "'nodes'"),
        (EdgeKind.NODE_PREHOOKS, None),
    ),
    "create_graph_on_a_living_parameter": (
        (EdgeKind.GLOBAL, "W"),
        (EdgeKind.GRAD, None),
    ),
    "hook_of_a_wrapper": (
        (EdgeKind.ATTRIBUTE, "model"),
        (EdgeKind.BOUND_SELF, None),
    ),
    "hooks_of_two_tensors": (
        (EdgeKind.CLOSURE_CELL, "a"),
        (EdgeKind.CLOSURE_CELL, "b"),
        (EdgeKind.TENSOR_HOOKS, None),
    ),
    "ctx_keeps_two_outputs": (
        (EdgeKind.ATTRIBUTE, "kept"),
        (EdgeKind.VALUE, "'outputs'"),
    ),
    "escape_from_vmap": ((EdgeKind.GLOBAL, "ESCAPED"),),
    "scripted_models": (
        (EdgeKind.GLOBAL, "KEPT"),
        (EdgeKind.PARAMETER, "weight"),
    ),
    "torch_future": (
        (EdgeKind.GLOBAL, "KEPT"),
        (EdgeKind.FUTURE_RESULT, None),
    ),
    "buffer_with_its_graph": (
        (EdgeKind.GLOBAL, "STATISTICS"),
        (EdgeKind.BUFFER, "mean"),
    ),
    "attribute_of_a_parameter": (
        (EdgeKind.GLOBAL, "PARAMETER"),
        (EdgeKind.ATTRIBUTE, "history"),
    ),
    "finalize": (
        (EdgeKind.FINALIZER_REGISTRY, None),
        (EdgeKind.ATTRIBUTE, "args"),
    ),
    "log_record": (
        (EdgeKind.ATTRIBUTE, "args"),
        (EdgeKind.ATTRIBUTE, "records"),
    ),
    "linked_list": ((EdgeKind.GLOBAL, "CHAIN"),),
    "namedtuple": (
        (EdgeKind.GLOBAL, "ENTRIES"),
        (EdgeKind.FIELD, "value"),
    ),
    "dataclass": (
        (EdgeKind.GLOBAL, "ENTRIES"),
        (EdgeKind.ATTRIBUTE, "output"),
    ),
    "keyed_by_tensor": ((EdgeKind.GLOBAL, "SCORES"), (EdgeKind.KEY, None)),
    "resurrected": ((EdgeKind.GLOBAL, "GRAVE"), (EdgeKind.ATTRIBUTE, "value")),
    "patched_again": ((EdgeKind.CLASS_ATTRIBUTE, "loss"), (EdgeKind.CLOSURE_CELL, "weight")),
    "module_per_plugin": ((EdgeKind.GLOBAL, "weights"),),
    "weak_dictionary_value": ((EdgeKind.GLOBAL, "PER_OBJECT"),),
    "view_of_big": ((EdgeKind.GLOBAL, "HISTORY"),),
    "parent_child": ((EdgeKind.ATTRIBUTE, "parent"),),
    "global_list": (
        (EdgeKind.GLOBAL, "HISTORY"),
        (EdgeKind.ITEM, None),
    ),
    "global_dict": (
        (EdgeKind.GLOBAL, "TABLE"),
        (EdgeKind.VALUE, None),
    ),
    "global_set": ((EdgeKind.GLOBAL, "SETS"),),
    "deque": ((EdgeKind.GLOBAL, "QUEUE"),),
    "attribute": (
        (EdgeKind.GLOBAL, "MODEL"),
        (EdgeKind.ATTRIBUTE, "cache"),
    ),
    "class_attribute": ((EdgeKind.CLASS_ATTRIBUTE, "registry"),),
    "self_cycle": ((EdgeKind.ATTRIBUTE, "me"),),
    "bound_method_cycle": (
        (EdgeKind.ATTRIBUTE, "which"),
        (EdgeKind.BOUND_SELF, None),
    ),
    "bound_method": (
        (EdgeKind.GLOBAL, "CALLBACKS"),
        (EdgeKind.BOUND_SELF, None),
    ),
    "closure": (
        (EdgeKind.GLOBAL, "CALLBACKS"),
        (EdgeKind.CLOSURE_CELL, "activations"),
    ),
    "recursive_closure": ((EdgeKind.CLOSURE_CELL, "visit"),),
    "partial": ((EdgeKind.PARTIAL_ARGUMENT, None),),
    "default_argument": ((EdgeKind.DEFAULT_ARGUMENT, "batch"),),
    "mutable_default": ((EdgeKind.DEFAULT_ARGUMENT, "seen"),),
    "generator": ((EdgeKind.LOCAL, "batch"),),
    "traceback": (
        (EdgeKind.GLOBAL, "ERRORS"),
        (EdgeKind.LOCAL, "activations"),
    ),
    "exception_cycle": ((EdgeKind.LOCAL, "err"),),
    "sys_last_value": ((EdgeKind.LAST_EXCEPTION, "last_value"),),
    "thread": ((EdgeKind.ARGUMENT, "batch"),),
    "contextvar": ((EdgeKind.CONTEXT_VARIABLE, "activations"),),
    "thread_local": ((EdgeKind.THREAD_LOCAL, "seen"),),
    "lru_cache": ((EdgeKind.CACHE_RESULT, None),),
    "lru_cache_argument": ((EdgeKind.CACHE_ARGUMENT, None),),
    "atexit": (
        (EdgeKind.ATEXIT_CALLBACK, None),
        (EdgeKind.CLOSURE_CELL, "value"),
    ),
    "event_bus": (
        (EdgeKind.GLOBAL, "LISTENERS"),
        (EdgeKind.VALUE, "'epoch_end'"),
        (EdgeKind.BOUND_SELF, None),
    ),
    "step_outputs": (
        (EdgeKind.GLOBAL, "LIT"),
        (EdgeKind.ATTRIBUTE, "outputs"),
    ),
    "buffered_log": (
        (EdgeKind.ATTRIBUTE, "buffer"),
        (EdgeKind.ATTRIBUTE, "grad"),
    ),
    "saved_context": (
        (EdgeKind.GLOBAL, "KEPT"),
        (EdgeKind.CONTEXT_VARIABLE, "batch"),
    ),
    "pending_task": (
        (EdgeKind.GLOBAL, "TASKS"),
        (EdgeKind.COROUTINE, None),
        (EdgeKind.LOCAL, "batch"),
    ),
    "scheduled_call": (
        (EdgeKind.GLOBAL, "LOOP"),
        (EdgeKind.ATTRIBUTE, "_args"),
    ),
    "future_result": (
        (EdgeKind.GLOBAL, "KEPT"),
        (EdgeKind.ATTRIBUTE, "_result"),
    ),
    "future_exception": (
        (EdgeKind.ATTRIBUTE, "_exception"),
        (EdgeKind.LOCAL, "activations"),
    ),
    "queue": (
        (EdgeKind.GLOBAL, "QUEUE"),
        (EdgeKind.REFERENCE, None),
    ),
    "singledispatch": (
        (EdgeKind.GLOBAL, "handle"),
        (EdgeKind.CLOSURE_CELL, "weights"),
    ),
    "finalizer_of_itself": (
        (EdgeKind.FINALIZER_REGISTRY, None),
        (EdgeKind.CLOSURE_CELL, "layer"),
    ),
    "global_forward_hook": (
        (EdgeKind.GLOBAL, "_global_forward_hooks"),
        (EdgeKind.CLOSURE_CELL, "seen"),
    ),
    "generator_in_zip": (
        (EdgeKind.GLOBAL, "KEPT"),
        (EdgeKind.REFERENCE, None),
    ),
    "weakref_callback": (
        (EdgeKind.ATTRIBUTE, "__callback__"),
        (EdgeKind.CLOSURE_CELL, "value"),
    ),
    "signal_handler": (
        (EdgeKind.SIGNAL_HANDLER, "SIGUSR1"),
        (EdgeKind.CLOSURE_CELL, "before"),
    ),
    "exit_stack": (
        (EdgeKind.GLOBAL, "STACK"),
        (EdgeKind.ATTRIBUTE, "_exit_callbacks"),
    ),
    "own_frame": ((EdgeKind.LOCAL, "frame"),),
    "mock_calls": (
        (EdgeKind.GLOBAL, "MOCK"),
        (EdgeKind.ATTRIBUTE, "_mock_call_args_list"),
    ),
    "patched_forward": (
        (EdgeKind.ATTRIBUTE, "original"),
        (EdgeKind.BOUND_SELF, None),
    ),
    "lru_cache_on_a_method": ((EdgeKind.CACHE_ARGUMENT, None),),
    "recorded_warnings": (
        (EdgeKind.GLOBAL, "KEPT"),
        (EdgeKind.EXCEPTION_ARGS, "args"),
    ),
    "loss_history": ((EdgeKind.GLOBAL, "LOSSES"),),
    "running_sum": (
        (EdgeKind.GLOBAL, "METER"),
        (EdgeKind.ATTRIBUTE, "total"),
    ),
    "running_sum_in_place": ((EdgeKind.GLOBAL, "TOTAL"),),
    "forward_hook_collects": ((EdgeKind.ATTRIBUTE, "activations"),),
    "hook_per_call": (
        (EdgeKind.ATTRIBUTE, "_forward_hooks"),
        (EdgeKind.CLOSURE_CELL, "saved"),
    ),
    "module_hook_cycle": (
        (EdgeKind.CLOSURE_CELL, "model"),
        (EdgeKind.ATTRIBUTE, "_forward_hooks"),
    ),
    "optimizer_state": (
        (EdgeKind.GLOBAL, "SPLAT_OPTIMIZER"),
        (EdgeKind.ATTRIBUTE, "state"),
    ),
    "param_groups": (
        (EdgeKind.GLOBAL, "GROWING"),
        (EdgeKind.ATTRIBUTE, "param_groups"),
    ),
    "dataset_cache": (
        (EdgeKind.GLOBAL, "CACHED"),
        (EdgeKind.ATTRIBUTE, "cache"),
    ),
    "kept_grad_fn": ((EdgeKind.GLOBAL, "NODES"),),
    "validation_outputs": (
        (EdgeKind.GLOBAL, "EMBEDDINGS"),
        (EdgeKind.VALUE, "'val'"),
    ),
    "trainer_cycle": ((EdgeKind.ATTRIBUTE, "trainer"),),
    "parametrized_module": ((EdgeKind.CLASS_OF, None),),
    "tree_flatten": ((EdgeKind.CLOSURE_CELL, "helper"),),
    "module_list": ((EdgeKind.GLOBAL, "MODELS"),),
}
