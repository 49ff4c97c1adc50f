#include "ops.h"

#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <array>
#include <new>

#include "allocator.h"
#include "boxed.h"
#include "graph.h"

namespace memwatch {

namespace {

/// The number of this thread, as `threading.get_ident()` gives it.
int64_t this_thread() { return static_cast<int64_t>(PyThread_get_thread_ident()); }

/// Return the result of a Python call. Null if it raised; its error stays set.
py::object called(PyObject* result) { return py::reinterpret_steal<py::object>(result); }

/// Return whether a list may contain tensors. The ops of c10d have lists of lists.
bool is_list(const c10::IValue& value) {
  return value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList();
}

}  // namespace

Recorder::Recorder(const py::object& callbacks, std::shared_ptr<Storages> storages, std::shared_ptr<Stacks> stacks,
                   py::object context, std::shared_ptr<Rows> uses, py::list started)
    : callbacks_(callbacks),
      context_(std::move(context)),
      started_(std::move(started)),
      storages_(std::move(storages)),
      stacks_(std::move(stacks)),
      uses_(std::move(uses)),
      kinds_(callbacks_.string_id),
      overloads_(callbacks_.overload_of) {
  view_.text = "a view";
  lift_.text = "a tensor of data";
  unknown_.text = "an op";
  losses = 0;
  newest_told = static_cast<int64_t>(at::sequence_number::peek()) - 1;
  views_->add(ViewsRow{.op = 0, .sequence = newest_told, .stack = kNone, .module = kNone, .node = kNone});
}

void Recorder::close() {
  closed_ = true;
  ++running_;
  leave();
}

/// An op has ended.
void Recorder::leave() {
  if (--running_ == 0 && closed_) {
    const py::error_scope raised;  // the op that ran may have raised
    kinds_.clear();
    overloads_.clear();
    callbacks_ = OpCallbacks();
    context_.clear();
    storages_->close();
  }
}

bool Recorder::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call) {
  if (closed_) {
    return false;
  }
  const Running running(*this);  // looking up a kind may run Python
  const Kind* kind = nullptr;
  return look(unknown_, [&] { kind = &kinds_.of(op); }) && before(*kind, op, stack, call);
}

bool Recorder::before(const Kind& kind, const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call) {
  Running running(*this);
  call.kind = &kind;
  if (kind.is_view) {
    view(kind);
  }
  if (kind.skipped || !start(call, 0)) {
    return false;
  }
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  look(*call.kind, [&] {
    if (!kind.numbers.empty()) {
      note_numbers(call, arguments);
    }
    if (call.kind->resizes) {
      call.kept.assign(arguments.begin(), arguments.end());
      return;
    }
    size_t position = 0;
    for (const c10::IValue& value : arguments) {
      give(value, call.kind->access(position++), call.given);
    }
  });
  if (!number(call)) {
    return false;
  }
  running.stays();
  return true;
}

void Recorder::after(const c10::OperatorHandle& op, const torch::jit::Stack* stack, Call& call, int64_t end) {
  Running running(*this, /*entered=*/true);
  if (closed_) {
    return;
  }
  ran(call, end, stack == nullptr);
  if (stack == nullptr) {
    return;
  }
  look(*call.kind, [&] {
    storages_->record_deaths(ops_started());  // an address may be in use again
    for (size_t position = 0; position < call.kept.size(); ++position) {
      if (call.kept[position].isTensor() && call.kind->access(position) == kAccessWrite) {
        const py::object written = owned(THPVariable_Wrap(call.kept[position].toTensor()));
        callbacks_.resized(py::make_tuple(written), py::dict());
      }
      give(call.kept[position], call.kind->access(position), call.given);
    }
    write_uses(call);
    for (const c10::IValue& value : torch::jit::last(*stack, op.schema().returns().size())) {
      made(call, value, end);
    }
  });
  flush_if_due(call, end);
}

py::object Recorder::dispatch(const py::object& mode, const py::object& func, const py::object& types,
                              const py::tuple& args, const py::dict& kwargs) {
  if (closed_) {
    return called(PyObject_Call(func.ptr(), args.ptr(), kwargs.ptr()));
  }
  const Running running(*this);
  bool hand_on = PyObject_Size(types.ptr()) != 0;
  look(unknown_, [&] { hand_on |= !owned(PyObject_CallNoArgs(callbacks_.frame_callback.ptr())).is_none(); });
  if (hand_on) {
    const std::array<PyObject*, 5> given{mode.ptr(), func.ptr(), types.ptr(), args.ptr(), kwargs.ptr()};
    return called(PyObject_Vectorcall(callbacks_.hand_on.ptr(), given.data(), given.size(), nullptr));
  }
  const Overload* overload = nullptr;
  if (!look(unknown_, [&] { overload = &overloads_.of(func, kinds_); })) {
    return called(PyObject_Call(func.ptr(), args.ptr(), kwargs.ptr()));
  }
  if (overload->op) {
    if (auto stack = boxed(*overload->op, overload->takes_numbers, args, kwargs, callbacks_)) {
      return perform_boxed(overload->kind, *overload->op, std::move(*stack));
    }
  }
  if (overload->kind == nullptr) {
    return called(PyObject_Call(overload->call.ptr(), args.ptr(), kwargs.ptr()));
  }
  return perform(*overload->kind, overload->python_kind, overload->call, 0, args, kwargs);
}

/// Run an op of plain tensors directly in C++. A call through Python would search for a subclass that runs it instead.
py::object Recorder::perform_boxed(const Kind* kind, c10::OperatorHandle op, torch::jit::Stack stack) {
  Call call;
  const bool noted = kind != nullptr && before(*kind, op, stack, call);
  int64_t end = 0;
  try {
    const py::gil_scoped_release unlocked;
    op.callBoxed(stack);
    end = ticks();
  } catch (...) {
    if (noted) {
      const py::error_scope raised;  // up to torch 2.12 an error of Python stays set while C++ unwinds
      after(op, nullptr, call, ticks());
    }
    throw;
  }
  if (noted) {
    after(op, &stack, call, end);
  }
  if (kind != nullptr && kind->is_lift) {
    lift(torch::jit::peek(stack, 0, 1).toTensor());
  }
  if (stack.size() == 1) {  // a copy of the stack would need memory itself
    return made_with_reserve([&] { return torch::jit::toPyObject(c10::IValue(stack.front())); });
  }
  return torch::jit::createPyObjectForStack(std::move(stack));
}

py::object Recorder::run(const py::object& kind, const py::tuple& args, const py::dict& kwargs) {
  const Running running(*this);
  const PythonKind python_kind(kind);
  const py::object function = python_kind.call();
  const Kind* known = nullptr;
  if (!look(unknown_, [&] { known = &kinds_.of(python_kind); })) {
    return called(PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr()));
  }
  return perform(*known, python_kind, function, 1, args, kwargs);
}

/// Run and record an op that Python passed on, without the innermost `skip` frames in its stack.
py::object Recorder::perform(const Kind& kind, const PythonKind& python_kind, const py::object& function, int skip,
                             const py::tuple& args, const py::dict& kwargs) {
  const Running running(*this);
  Call call;
  call.kind = &kind;
  if (kind.is_view) {
    view(kind, skip);
  }
  if (kind.is_lift) {
    py::object made = called(PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr()));
    if (made && is_tensor(made.ptr())) {
      lift(THPVariable_Unpack(made.ptr()), skip);
    }
    return made;
  }
  if (kind.skipped || !start(call, skip) || !number(call)) {
    return called(PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr()));
  }
  py::object result = called(PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr()));
  const int64_t end = ticks();
  if (closed_) {  // the block ended inside the op
    return result;
  }
  if (!result) {
    const py::object restored = with_tensors(kind, call, python_kind, args);
    if (!restored) {
      const py::error_scope raised;
      ran(call, end, true);
      return result;
    }
    PyErr_Clear();
    return perform(kind, python_kind, function, skip, restored, kwargs);
  }
  ran(call, end, false);
  look(kind, [&] {
    storages_->record_deaths(ops_started());
    if (kind.resizes) {
      callbacks_.resized(args, kwargs);
    }
    if (!kind.numbers.empty() && (call.phase == kPhaseForward || call.phase == kPhaseRecompute)) {
      for (const auto& row : python_kind.numbers_in(args, kwargs)) {
        numbers_->add_tuple(py::make_tuple(call.number) + py::reinterpret_borrow<py::tuple>(row));
      }
    }
    size_t position = 0;
    each_item(args.ptr(), [&](PyObject* value) { give(value, kind.access(position++), call.given); });
    for (const auto& [name, value] : kwargs) {
      give(value.ptr(), PySet_Contains(kind.write_names.ptr(), name.ptr()) == 1 ? kAccessWrite : kAccessRead,
           call.given);
    }
    write_uses(call);
    made(call, result.ptr(), end);
  });
  flush_if_due(call, end);
  return result;
}

/// Return arguments for a second try after a call failed, with tensors in place of numbers. Null if there are none.
py::object Recorder::with_tensors(const Kind& kind, const Call& call, const PythonKind& python_kind,
                                  const py::tuple& args) {
  py::object restored;
  if (PyErr_Occurred() == PyExc_RuntimeError) {
    const py::error_scope raised;
    look(kind, [&] {
      PyErr_Restore(Py_XNewRef(raised.type), Py_XNewRef(raised.value), Py_XNewRef(raised.trace));
      if (callbacks_.is_by_handler(py::error_already_set())) {
        return;
      }
      py::object found = python_kind.numbers_as_tensors(args);
      if (!found.is_none()) {
        set_ops_started(call.number);  // nothing ran
        restored = std::move(found);
      }
    });
  }
  return restored;
}

void Recorder::view(const Kind& kind, int skip) {
  const Running running(*this);
  Call call;
  call.kind = &kind;
  if (closed_ || !has_new_node() || !start(call, skip)) {
    return;
  }
  const bool in_backward = call.made != kNone;
  look(kind, [&] {
    views_->add(ViewsRow{.op = ops_started(),
                         .sequence = in_backward ? call.made : call.sequence,
                         .stack = call.stack,
                         .module = call.module,
                         .node = in_backward ? call.sequence : kNone});
  });
}

void Recorder::lift(const at::Tensor& tensor, int skip) {
  const Running running(*this);
  Call call;
  call.kind = &lift_;
  const int64_t told = newest_told;
  const bool begun = !closed_ && start(call, skip);
  newest_told = told;  // no row of this op records the nodes that were made before it
  if (!begun) {
    return;
  }
  look(*call.kind, [&] {
    const int64_t before = storages_->count;
    Given made;
    give(tensor, kAccessOutput, made);
    for (const auto& [storage, access] : made.uses) {
      if (storage >= before) {
        lifts_->add(LiftsRow{.storage = storage, .stack = call.stack, .module = call.module});
      }
    }
  });
}

/// As `begin`. If the op cannot be recorded, this notes it and returns false.
bool Recorder::start(Call& call, int skip) {
  bool begun = false;
  if (context_.is_cleared()) {  // a signal handler has just ended the block
    return begun;
  }
  look(*call.kind, [&] {
    begin(call, skip);
    begun = true;
  });
  return begun;
}

/// Record the state before an op runs.
void Recorder::begin(Call& call, int skip) {
  const auto running = static_cast<size_t>(running_);  // at least the number of running ops; each gets a row
  ops_->reserve<OpsRow>(running);
  nodes_->reserve<NodesRow>(running);
  storages_->record_deaths(ops_started());
  const auto [module, outer] = context_.top();
  call.module = module;
  const int64_t task = torch::autograd::get_current_graph_task_id();
  const int64_t task_before = context_.graph_task();
  if (task == kNone) {
    if (task_before != kNone) {
      context_.leave_backward();
    }
    call.phase = !c10::GradMode::is_enabled() && context_.is_optimizing() ? kPhaseOptimizer : kPhaseForward;
    call.sequence = last_sequence();
  } else {
    if (task_before != task) {
      if (task_before == kNone) {
        backwards_.clear();
      }
      context_.enter_backward(task);
      if (backwards_.insert(task).second) {
        storages_->hold = callbacks_.backward_begins(leaves_of_backward()).cast<bool>();
      }
    }
    const bool again = (context_.recomputing() == task && context_.thread() == this_thread()) ||
                       (c10::GradMode::is_enabled() && !torch::autograd::get_current_graph_task_keep_graph() &&
                        context_.recomputes_by_hand());
    call.phase = again ? kPhaseRecompute : kPhaseBackward;
    call.sequence = again ? last_sequence() : running_sequence();
    call.made = !again && c10::GradMode::is_enabled() ? last_sequence() : kNone;
  }
  if (c10::GradMode::is_enabled()) {
    newest_told = last_sequence();
  }
  call.stack = stacks_->capture(outer, task, skip);
}

/// Number the op as the last step before it runs, so that even after an error every number has a row.
///
/// Returns false if that failed: the op runs unrecorded.
bool Recorder::number(Call& call) {
  return look(*call.kind, [&] {
    call.number = ops_started();
    set_ops_started(call.number + 1);
    call.start = ticks();
  });
}

/// Append the row of the op.
void Recorder::ran(const Call& call, int64_t end, bool failed) {
  look(*call.kind, [&] {
    ops_->add(OpsRow{.op = call.number,
                     .name = call.kind->name,
                     .stack = call.stack,
                     .module = call.module,
                     .phase = call.phase,
                     .sequence = call.sequence,
                     .start_ticks = call.start,
                     .end_ticks = end,
                     .failed = failed});
    if (call.made != kNone) {
      nodes_->add(NodesRow{.op = call.number, .sequence = call.made});
    }
    if (failed) {
      callbacks_.op_failed();
    }
  });
}

/// Note the dimensions and reductions among the arguments of an op of a forward.
void Recorder::note_numbers(Call& call, c10::ArrayRef<c10::IValue> arguments) {
  if (call.phase != kPhaseForward && call.phase != kPhaseRecompute) {
    return;
  }
  for (const auto& [position, argument] : call.kind->numbers) {
    const c10::IValue& value = arguments[position];
    if (argument == kNumberReduction) {
      if (value.isInt()) {
        call.numbers.push_back(NumbersRow{.op = kNone,
                                          .argument = argument,
                                          .value = value.toInt(),
                                          .dimensions = kNone,
                                          .size = kNone,
                                          .stride = kNone});
      }
      continue;
    }
    if (!arguments[0].isTensor() || !is_plain(arguments[0].toTensor())) {
      continue;
    }
    const at::Tensor& tensor = arguments[0].toTensor();
    const int64_t count = tensor.dim();
    const auto note = [&](int64_t dimension) {
      if (-count <= dimension && dimension < count) {
        const int64_t place = dimension < 0 ? dimension + count : dimension;
        call.numbers.push_back(NumbersRow{.op = kNone,
                                          .argument = argument,
                                          .value = place,
                                          .dimensions = count,
                                          .size = tensor.size(place),
                                          .stride = tensor.stride(place)});
      }
    };
    if (value.isInt()) {
      note(value.toInt());
    } else if (value.isIntList()) {
      for (const int64_t dimension : value.toDimVector()) {
        note(dimension);
      }
    }
  }
}

/// Append the numbers among the op's arguments, and the uses of its inputs.
void Recorder::write_uses(const Call& call) {
  for (NumbersRow row : call.numbers) {
    row.op = call.number;
    numbers_->add(row);
  }
  for (const auto& [storage, access] : call.given.uses) {
    uses_->add(UsesRow{.op = call.number, .storage = storage, .access = access});
  }
}

void Recorder::flush_if_due(const Call& call, int64_t end) {
  if (closed_) {
    return;
  }
  if (call.number >= flush_op_ || end > flush_ticks_) {
    look(*call.kind, [&] { callbacks_.flush_due(); });
  }
}

/// Read tensors. An error in reading one must not stop the program, whatever is thrown.
///
/// Returns false if something was thrown.
template <typename Look>
bool Recorder::look(const Kind& kind, Look&& with) {
  try {
    with();
    return true;
  } catch (py::error_already_set& error) {
    could_not_record(kind, error);
  } catch (python_error& error) {  // torch's own C++ exception for an exception of Python
    error.restore();
    try {
      py::error_already_set restored;
      could_not_record(kind, restored);
    } catch (const std::bad_alloc&) {
      lose();
    }
  } catch (const c10::Error& error) {
    clear_error();
    could_not_record(kind, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    clear_error();
    tell(kind, py::handle(PyExc_MemoryError));
  } catch (const std::exception& error) {  // pybind11 leaves an exception of Python set where it throws a cast_error
    clear_error();
    could_not_record(kind, error.what());
  }
  return false;
}

/// Note an error; if even that fails, count it.
void Recorder::tell(const Kind& kind, const py::handle& error) {
  if (closed_) {
    return;
  }
  try {
    callbacks_.could_not_record(kind.text, error);
  } catch (py::error_already_set& own) {
    if (!own.matches(PyExc_Exception) || own.matches(callbacks_.passed_on) || callbacks_.is_by_handler(own)) {
      throw;
    }
    count_loss();
  } catch (const std::exception&) {
    lose();
  }
}

/// Count a lost record.
void Recorder::lose() {
  count_loss();
  clear_error();
}

/// Clear an exception of Python that is still set. There may have been no memory for the C++ exception that carries it.
void Recorder::clear_error() {
  if (PyErr_Occurred() == nullptr) {
    return;
  }
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0 || PyErr_ExceptionMatches(callbacks_.passed_on.ptr()) != 0) {
    python_error passed;
    PyErr_Fetch(&passed.type, &passed.value, &passed.traceback);
    throw passed;
  }
  PyErr_Clear();
}

/// Note an exception of Python, unless it belongs to the program: its limit, an interrupt, an exit, a signal handler's.
void Recorder::could_not_record(const Kind& kind, py::error_already_set& error) {
  if (!error.matches(PyExc_Exception) || error.matches(callbacks_.passed_on) || callbacks_.is_by_handler(error)) {
    throw py::error_already_set(error);
  }
  tell(kind, error.value());
}

/// Note an exception of C++.
void Recorder::could_not_record(const Kind& kind, const char* what) {
  py::object error;
  try {
    error = py::handle(PyExc_RuntimeError)(what);
  } catch (const std::exception&) {
    lose();
    return;
  }
  tell(kind, error);
}

void Recorder::give(const at::Tensor& tensor, int64_t access, Given& given) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {  // a Python number
    return;
  }
  if (is_plain(tensor)) {
    given.uses.emplace_back(number_of(tensor), access);
    given.keys.push_back(key_of(tensor));
    return;
  }
  const py::object seen = callbacks_.storages_of(owned(THPVariable_Wrap(tensor)));
  for (const auto& part : seen) {
    const py::tuple pair = py::reinterpret_borrow<py::tuple>(part);
    given.uses.emplace_back(integer(PyTuple_GET_ITEM(pair.ptr(), 0)), access);
    given.keys.push_back(integer(PyTuple_GET_ITEM(pair.ptr(), 1)));
  }
}

void Recorder::give(const c10::IValue& value, int64_t access, Given& given) {
  if (value.isTensor()) {
    give(value.toTensor(), access, given);
  } else if (is_list(value)) {
    for (const c10::IValue& item : value.toListRef()) {
      give(item, access, given);
    }
  }
}

void Recorder::give(PyObject* value, int64_t access, Given& given) {
  if (is_tensor(value)) {
    give(THPVariable_Unpack(value), access, given);
  } else if (is_list(value)) {
    each_item(value, [&](PyObject* item) { give(item, access, given); });
  }
}

int64_t Recorder::number_of(const at::Tensor& tensor) {
  const py::object key = python_integer(key_of(tensor));
  PyObject* known = storages_->find(key);
  return known != nullptr ? storages_->number_of(known) : storages_->born(tensor, key, kNone, kOriginBaseline, ticks());
}

void Recorder::made(Call& call, const at::Tensor& tensor, int64_t at) {
  if (!tensor.defined()) {
    return;
  }
  if (!is_plain(tensor)) {
    callbacks_.made(call.number, owned(THPVariable_Wrap(tensor)),
                    py::cast(std::vector<int64_t>(call.given.keys.begin(), call.given.keys.end())));
    return;
  }
  const int64_t address = key_of(tensor);
  const py::object key = python_integer(address);
  PyObject* known = storages_->find(key);
  const auto is_given = [&] {
    return std::find(call.given.keys.begin(), call.given.keys.end(), address) != call.given.keys.end();
  };
  if (known == nullptr ||
      (storages_->is_by_tensor(known) && !is_given())) {  // otherwise the address belonged to an earlier storage
    const int64_t storage = storages_->born(tensor, key, call.number, kOriginOp, at, [&] {
      if (call.workspace_bytes == kNone) {
        call.workspace_bytes = AllocatorLog::above_now(call.start, tensor.device());
      }
      return call.workspace_bytes;
    });
    uses_->add(UsesRow{.op = call.number, .storage = storage, .access = kAccessOutput});
  }
}

void Recorder::made(Call& call, const c10::IValue& value, int64_t at) {
  if (value.isTensor()) {
    made(call, value.toTensor(), at);
  } else if (is_list(value)) {
    for (const c10::IValue& item : value.toListRef()) {
      made(call, item, at);
    }
  }
}

void Recorder::made(Call& call, PyObject* value, int64_t at) {
  if (is_tensor(value)) {
    made(call, THPVariable_Unpack(value), at);
  } else if (is_list(value)) {
    each_item(value, [&](PyObject* item) { made(call, item, at); });
  }
}

void Recorder::set_ops_started(int64_t count) {
  py::object number = python_integer(count);  // first: the list would accept null, too
  if (PyList_SetItem(started_.ptr(), 0, number.release().ptr()) != 0) {
    throw py::error_already_set();
  }
}

}  // namespace memwatch
