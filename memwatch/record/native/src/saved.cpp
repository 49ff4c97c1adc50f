#include "saved.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <new>

#include "autograd_state.h"
#include "unseen.h"

namespace memwatch {

namespace {

/// Return whether a function written in Python is saving now. Then a tensor of its node is its own output.
///
/// Such a function reserves room for all its tensors before it saves the first one
/// (torch/csrc/autograd/python_function.cpp). The room is full from the last save until the tensors are freed.
bool is_saving(const torch::autograd::Node& node) {
  const auto& function_node = static_cast<const torch::autograd::PyNode&>(node);
  const auto* function = reinterpret_cast<THPFunction*>(compat::object_of(function_node));
  return function != nullptr && function->has_freed_buffers == 0 && !function->saved_tensors_accessed_and_cleared &&
         function->saved_variables.size() < function->saved_variables.capacity();
}

/// Return whether the program has detached a saved input in place since a node saved it. torch then refuses to use it.
bool was_detached(const Pack& pack) {
  if (pack.holds != Pack::kOriginal || pack.node_name.empty()) {
    return false;
  }
  const AutogradState state(pack.packed);
  return state.is_leaf() && !state.is_view();  // a view cannot be detached in place
}

/// Return whether a node is one of torch's own functions. Functions of Python and of libraries may use such a tensor.
template <typename Node>
bool is_torchs_own(const Node& node) {
  return node && !is_in_python(*node) && node->name().find("::") == std::string::npos;
}

/// Call a hook of the program. Its error stays set in Python. A C++ exception for it could fail for lack of memory.
py::object called(PyObject* hook, const py::object& argument) {
  PyObject* result = PyObject_CallOneArg(hook, argument.ptr());
  return result != nullptr ? py::reinterpret_steal<py::object>(result) : throw python_error();
}

int64_t newest_sequence() { return static_cast<int64_t>(at::sequence_number::peek()) - 1; }

}  // namespace

SavedTensors::SavedTensors(const py::object& callbacks, std::shared_ptr<Storages> storages, py::object context,
                           py::list started)
    : log_(std::make_shared<SavedLog>(std::move(started))),
      callbacks_(callbacks),
      context_(std::move(context)),
      storages_(std::move(storages)) {}

/// Release the block. Packs that stay in the program's graph can still raise their errors.
void SavedTensors::close() {
  log_->closed = true;
  log_->living.clear();
  callbacks_.describe = callbacks_.could_not_record = keeper_ =
      py::none();  // Python's collector cannot see that they are held here
  context_.clear();
  storages_.reset();
}

void SavedTensors::pack(Pack& pack, const py::object& object) {
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  pack.keeper = keeper_;
  if (outer_.is_none()) {
    hold_or_alias(pack, tensor);
  } else {
    pack.packed_by_program = call_outer(0, object);
  }
  if (!log_->closed) {
    append_if_possible(pack, tensor, object);
  }
}

py::object SavedTensors::pack_without_record(const py::object& object) {
  if (!outer_.is_none()) {
    return call_outer(0, object);
  }
  Pack pack(log_);
  hold_or_alias(pack, THPVariable_Unpack(object.ptr()));
  return python_tensor(pack.packed);
}

py::object SavedTensors::unpack_without_record(const py::object& packed) const {
  return outer_.is_none() ? packed : call_outer(1, packed);
}

/// Call the program's hook that packs (0) or that unpacks (1).
py::object SavedTensors::call_outer(Py_ssize_t hook, const py::object& argument) const {
  return called(PyTuple_GET_ITEM(outer_.ptr(), hook), argument);
}

/// As `hold`. Holds an alias if memory is too short for the name of the node.
void SavedTensors::hold_or_alias(Pack& pack, const at::Tensor& tensor) const {
  try {
    hold(pack, tensor);
  } catch (const std::bad_alloc&) {
    count_loss();
    pack.holds = Pack::kAliasOfOutput;
    pack.packed = tensor.detach();
  }
}

/// As `append`. An error there loses the row, unless it belongs to the program: its limit, an interrupt, an exit, a
/// signal handler's exception.
void SavedTensors::append_if_possible(Pack& pack, const at::Tensor& tensor, const py::object& object) {
  const PackCallbacks callbacks = callbacks_;  // the block may end meanwhile
  py::object raised;
  try {
    append(pack, tensor, object);
    return;
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception) || error.matches(callbacks.passed_on) || callbacks.is_by_handler(error)) {
      throw;
    }
    raised = error.value();
  } catch (const std::exception&) {  // for example because memory has run out
    PyErr_Clear();
    raised = py::reinterpret_borrow<py::object>(PyExc_MemoryError);
  }
  count_loss();
  try {
    callbacks.could_not_record("a saved tensor", raised);
  } catch (py::error_already_set& error) {
    if (callbacks.is_by_handler(error)) {
      throw;
    }
  } catch (const std::exception&) {
    PyErr_Clear();
  }
}

/// Keep the tensor itself if it is certainly an input of the node that saves it. Keep an alias if it may be an output.
void SavedTensors::hold(Pack& pack, const at::Tensor& tensor) const {
  pack.version = static_cast<int64_t>(tensor._version());
  pack.output_nr = tensor.output_nr();
  const AutogradState state(tensor);
  const auto& node = state.node();
  pack.holds = Pack::kOriginal;
  if (node) {
    pack.node_name = node->name();
    const bool in_python = is_in_python(*node);
    const bool newest = static_cast<int64_t>(node->sequence_nr()) == newest_sequence();
    const bool is_output = newest || (in_python && is_saving(*node));
    const bool of_library = pack.node_name.find("::") != std::string::npos;
    if (is_output) {
      pack.holds = Pack::kAliasOfOutput;
      pack.packed = tensor.detach();  // modes may see it: autograd detaches an output too
      return;
    }
    if (!in_python && (of_library || torch::autograd::ForwardADLevel::try_get_by_idx(0))) {
      pack.holds = Pack::kAliasOfUnknown;
      pack.packed = detached_unseen(tensor);
      pack.weak_original = decltype(pack.weak_original)(tensor.getIntrusivePtr());
      return;
    }
  }
  pack.packed = tensor;
}

void SavedTensors::append(Pack& pack, const at::Tensor& tensor, const py::object& object) {
  const Storages::Look looking(storages_);
  const auto storages = storages_;
  const py::object describe = callbacks_.describe;
  const CallContext context = context_;
  const int64_t op = log_->ops_started();
  int64_t storage = kNone, shape = kNone, nbytes = 0;
  if (is_plain(tensor)) {
    storage = storages->number_of(tensor, op);
    shape = storages->shape_of(tensor);
    nbytes = static_cast<int64_t>(tensor.nbytes());
  } else {
    const py::tuple seen = describe(object);
    storage = integer(py::object(seen[0]).ptr());
    shape = integer(py::object(seen[1]).ptr());
    nbytes = integer(py::object(seen[2]).ptr());
  }
  const int64_t sequence = newest_sequence();
  const int64_t module = context.top().first;
  const int64_t number = log_->count;
  log_->packs->reserve<PacksRow>(1);
  log_->living.emplace(number, std::make_pair(sequence, storage));
  log_->count = number + 1;
  pack.number = number;  // only a pack with a row may have a number, so nothing may fail from here on
  log_->packs->add(PacksRow{.pack = number,
                            .storage = storage,
                            .op = op,
                            .sequence = context.saves_inputs() ? kNone : sequence,
                            .module = module,
                            .nbytes = nbytes,
                            .shape = shape,
                            .time_ticks = ticks()});
}

py::object SavedTensors::unpack(Pack& pack) {
  log_->unpack(pack.number, false);
  if (pack.unpack_by_program) {
    return called(pack.unpack_by_program.ptr(), pack.packed_by_program);
  }
  if (!outer_.is_none()) {
    return call_outer(1, pack.packed_by_program);
  }
  if (was_detached(pack) && is_torchs_own(torch::autograd::get_current_node())) {
    PyErr_SetObject(PyExc_RuntimeError, callbacks_.detached_error.ptr());
    throw py::error_already_set();
  }
  if (static_cast<int64_t>(pack.packed._version()) != pack.version) {
    raise_inplace_error(pack);
  }
  // autograd detaches a tensor that had a gradient, an output or not
  const bool as_it_is =
      pack.holds == Pack::kAliasOfOutput || (pack.holds == Pack::kOriginal && !pack.packed.requires_grad());
  at::Tensor given = pack.packed;
  if (!as_it_is) {
    try {
      given = to_be_detached_unseen(pack.packed);
    } catch (const std::bad_alloc&) {  // a mode of the program sees a detach then
      count_loss();
    }
  }
  return python_tensor(given);
}

void SavedTensors::raise_inplace_error(Pack& pack) const {
  try {
    const py::object text = callbacks_.inplace_error(py::cast(&pack, py::return_value_policy::reference));
    PyErr_SetObject(PyExc_RuntimeError, text.ptr());
  } catch (const std::exception&) {  // no memory for the names and shapes that torch adds
    count_loss();
    PyErr_SetString(PyExc_RuntimeError,
                    "one of the variables needed for gradient computation has been modified by an inplace operation");
  }
  throw python_error();
}

bool SavedTensors::hook(Pack& pack, const std::string& modifying, const py::object& pack_hook, py::object unpack_hook) {
  if (!pack.packed.defined()) {
    return false;
  }
  const at::NoGradGuard no_grad;
  // an output was detached when it was packed, and torch detaches it once
  const at::Tensor given = pack.holds == Pack::kAliasOfOutput ? pack.packed : pack.packed.detach();
  const auto version = given._version();
  pack.packed_by_program = pack_hook(python_tensor(given));
  pack.unpack_by_program = std::move(unpack_hook);
  pack.packed.reset();
  pack.holds = Pack::kNothing;
  pack.weak_original.reset();
  if (given._version() != version) {
    PyErr_SetString(PyExc_RuntimeError, modifying.c_str());
    throw py::error_already_set();
  }
  return true;
}

py::dict SavedTensors::living_by_sequence() const {
  py::dict found;
  for (const auto& [number, node_and_storage] : log_->living) {
    const auto& [sequence, storage] = node_and_storage;
    if (storage != kNone) {
      const py::int_ key(sequence);
      if (!found.contains(key)) {
        found[key] = py::list();
      }
      found[key].cast<py::list>().append(storage);
    }
  }
  return found;
}

}  // namespace memwatch
