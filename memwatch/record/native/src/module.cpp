// The module memwatch.record.native._recorder: the compiled hot path, and the kernel on the dispatch key.

#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <typeinfo>

#include "allocator.h"
#include "autograd_state.h"
#include "graph.h"
#include "graph_walk.h"
#include "ops.h"
#include "saved.h"
#include "views.h"

namespace memwatch {

namespace {

std::shared_ptr<Recorder> running;  // touched under the interpreter's lock only
std::atomic<int64_t> passed{0};     // ops seen while no recorder ran
std::unique_ptr<torch::Library> library, library_of_views;

void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Fake);
  const c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::Fake);
  std::shared_ptr<Recorder> recorder;
  Call call;
  {
    const Locked locked;
    passed += running == nullptr ? 1 : 0;
    auto mine = running;  // the block may be left while the op runs
    if (mine != nullptr && mine->before(op, *stack, call)) {
      recorder = std::move(mine);
    }
  }
  if (recorder == nullptr) {
    op.redispatchBoxed(keys & below, stack);
    return;
  }
  const auto note = [&](const torch::jit::Stack* results) {
    const int64_t end = ticks();
    const Locked locked;
    const auto mine = std::move(recorder);  // destroyed before the lock is released
    mine->after(op, results, call, end);
  };
  try {
    op.redispatchBoxed(keys & below, stack);
  } catch (...) {
    {
      const Locked locked;
      const py::error_scope raised;  // up to torch 2.12 an error of Python stays set while C++ unwinds
      note(nullptr);
    }
    throw;
  }
  note(stack);
}

void note_view() {
  if (!has_new_node()) {
    return;
  }
  const Locked locked;
  if (const auto mine = running; mine != nullptr) {
    mine->view();
  }
}

void note_lift(const at::Tensor& tensor) {
  const Locked locked;
  if (const auto mine = running; mine != nullptr) {
    mine->lift(tensor);
  }
}

/// Register the kernel on the key for every op that has no kernel of its own there, and the kernels of views.
void put_kernel() {
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", c10::DispatchKey::Fake, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>());
  library_of_views =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::Fake, __FILE__, __LINE__);
  put_views<&note_view>(*library_of_views);
  put_lift<&note_lift>(*library_of_views);
}

void take_kernel() {
  library_of_views.reset();
  library.reset();
}

/// Keep a C++ object for as long as a Python object lives.
template <typename Kept>
py::object capsule_of(Kept kept) {
  auto own = std::make_unique<Kept>(std::move(kept));
  py::object capsule = owned(PyCapsule_New(own.get(), typeid(Kept).name(), [](PyObject* dying) {
    delete static_cast<Kept*>(PyCapsule_GetPointer(dying, typeid(Kept).name()));
  }));
  static_cast<void>(own.release());
  return capsule;
}

/// Return the object that a capsule keeps. Raises Python's error for a foreign capsule.
template <typename Kept>
Kept& kept_by(PyObject* capsule) {
  auto* kept = static_cast<Kept*>(PyCapsule_GetPointer(capsule, typeid(Kept).name()));
  return kept == nullptr ? throw py::error_already_set() : *kept;
}

/// `__torch_dispatch__(mode, func, types, args, kwargs)`: a C function, because it is called for every op.
PyObject* dispatch(PyObject* recorder, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 5, "__torch_dispatch__ takes 5 arguments, not ", count);
  const auto object = [&](int index) { return py::reinterpret_borrow<py::object>(given[index]); };
  const auto self = kept_by<std::shared_ptr<Recorder>>(recorder);
  return self->dispatch(object(0), object(1), object(2), object(3), object(4)).release().ptr();
  END_HANDLE_TH_ERRORS
}

/// `run(kind, args, kwargs)` of `OpRecorder` in memwatch/record/backend.py.
PyObject* run(PyObject* recorder, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 3, "run takes 3 arguments, not ", count);
  const auto object = [&](int index) { return py::reinterpret_borrow<py::object>(given[index]); };
  const auto self = kept_by<std::shared_ptr<Recorder>>(recorder);
  return self->run(object(0), object(1), object(2)).release().ptr();
  END_HANDLE_TH_ERRORS
}

/// Return whether an object is a pack of ours. If memory is too short, another object takes the place of a saved
/// tensor.
bool is_pack(PyObject* packed) { return PyCapsule_IsValid(packed, typeid(std::unique_ptr<Pack>).name()) != 0; }

PyObject* pack(PyObject* saved, PyObject* tensor) {
  HANDLE_TH_ERRORS
  const auto self = kept_by<std::shared_ptr<SavedTensors>>(saved);
  py::object capsule;
  Pack* ours = nullptr;
  try {
    auto made = self->new_pack();
    ours = made.get();
    capsule = capsule_of(std::move(made));
  } catch (const std::exception&) {  // bad_alloc, or Python's MemoryError
    count_loss();
    PyErr_Clear();
    return self->pack_without_record(py::reinterpret_borrow<py::object>(tensor)).release().ptr();
  }
  self->pack(*ours, py::reinterpret_borrow<py::object>(tensor));
  return capsule.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* unpack(PyObject* saved, PyObject* pack) {
  HANDLE_TH_ERRORS
  const auto self = kept_by<std::shared_ptr<SavedTensors>>(saved);
  if (!is_pack(pack)) {
    return self->unpack_without_record(py::reinterpret_borrow<py::object>(pack)).release().ptr();
  }
  return self->unpack(*kept_by<std::unique_ptr<Pack>>(pack)).release().ptr();
  END_HANDLE_TH_ERRORS
}

/// `capture(outer, task, depth=3)` of memwatch/record/backend.py: called for every call of a module.
PyObject* capture(PyObject* stacks, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 2 || count == 3, "capture takes 2 or 3 arguments, not ", count);
  const auto self = kept_by<std::shared_ptr<Stacks>>(stacks);
  const auto depth = count == 3 ? static_cast<int>(integer(given[2])) : 3;
  // Python counts its own frame too
  return python_integer(self->capture(integer(given[0]), integer(given[1]), depth - 1)).release().ptr();
  END_HANDLE_TH_ERRORS
}

/// Return the saved tensor for the object that autograd holds in its place. None if the tensor is gone or the object is
/// not our pack.
py::object original_of(const py::object& packed) {
  if (!is_pack(packed.ptr())) {
    return py::none();
  }
  const at::Tensor original = kept_by<std::unique_ptr<Pack>>(packed.ptr())->original();
  return original.defined() ? owned(THPVariable_Wrap(original)) : py::none();
}

/// Return the object in a pack of ours, and the program's unpack hook if a hook of the program packed it. None for
/// other objects.
py::object content_of(const py::object& packed) {
  if (!is_pack(packed.ptr())) {
    return py::none();
  }
  const auto& pack = *kept_by<std::unique_ptr<Pack>>(packed.ptr());
  const py::object unpack = pack.unpack_by_program ? pack.unpack_by_program : py::none();
  if (pack.packed.defined()) {
    return py::make_tuple(python_tensor(pack.packed), unpack);
  }
  return py::make_tuple(pack.packed_by_program ? pack.packed_by_program : py::none(), unpack);
}

bool hook(const std::string& modifying, const py::object& packed, const py::object& pack_hook,
          const py::object& unpack_hook) {
  return is_pack(packed.ptr()) &&
         SavedTensors::hook(*kept_by<std::unique_ptr<Pack>>(packed.ptr()), modifying, pack_hook, unpack_hook);
}

/// A C function that is called for every op or every saved tensor, without pybind11 in between.
template <typename Self>
py::object function(PyMethodDef& method, const std::shared_ptr<Self>& self) {
  return owned(PyCFunction_New(&method, capsule_of(self).ptr()));
}

py::object torch_dispatch(const std::shared_ptr<Recorder>& recorder) {
  static PyMethodDef method = {"__torch_dispatch__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&dispatch)),
                               METH_FASTCALL, nullptr};
  return function(method, recorder);
}

py::object run_of(const std::shared_ptr<Recorder>& recorder) {
  static PyMethodDef method = {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&run)), METH_FASTCALL,
                               nullptr};
  return function(method, recorder);
}

py::object capture_of(const std::shared_ptr<Stacks>& stacks) {
  static PyMethodDef method = {"capture", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&capture)),
                               METH_FASTCALL, nullptr};
  return function(method, stacks);
}

void hold_one(const std::shared_ptr<Storages>& storages, const at::Tensor& tensor, const py::object& known) {
  const Storages::Look looking(storages);
  storages->hold_one(tensor, known);
}

/// `watched_number(tensor, watch_on)` of `Ledger` in memwatch/record/tables/storages.py: called for every gradient.
PyObject* watched_number(PyObject* storages, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 2 && is_tensor(given[0]), "watched_number takes a tensor and a bool");
  const auto self = kept_by<std::shared_ptr<Storages>>(storages);
  const Storages::Look looking(self);
  const int64_t number = self->watched_number(THPVariable_Unpack(given[0]), given[1] == Py_True);
  return python_integer(number).release().ptr();
  END_HANDLE_TH_ERRORS
}

py::object watched_number_of(const std::shared_ptr<Storages>& storages) {
  static PyMethodDef method = {"watched_number",
                               reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&watched_number)), METH_FASTCALL,
                               nullptr};
  return function(method, storages);
}

/// `append(reference)`: the callback of every weak reference that watches something.
PyObject* note_death(PyObject* deaths, PyObject* reference) {
  HANDLE_TH_ERRORS
  kept_by<std::shared_ptr<Deaths>>(deaths)->append(reference);  // does not fail
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

py::object note_death_of(const std::shared_ptr<Deaths>& deaths) {
  static PyMethodDef method = {"append", &note_death, METH_O, nullptr};
  return function(method, deaths);
}

/// `walk(tensor, root)`: see `GraphWalk::behind`.
PyObject* walk_behind(PyObject* walk, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 2 && is_tensor(given[0]), "a walk takes a tensor and the number of a root");
  const auto self = kept_by<std::shared_ptr<GraphWalk>>(walk);
  return self->behind(THPVariable_Unpack(given[0]), integer(given[1])).release().ptr();
  END_HANDLE_TH_ERRORS
}

/// Each sample makes a walk, also where memory has run out, so it is a function and no class of pybind11. pybind11
/// allocates when it registers an object, outside of the part that catches exceptions of C++. A bad_alloc there unwinds
/// frames of Python, and the interpreter goes on with frames that no longer exist.
py::object graph_walk(int64_t max_nodes) {
  static PyMethodDef method = {"walk", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&walk_behind)),
                               METH_FASTCALL, nullptr};
  return function(method, std::make_shared<GraphWalk>(max_nodes));
}

void rewatch(const std::shared_ptr<Storages>& storages, int64_t op) {
  const Storages::Look looking(storages);
  storages->rewatch(op);
}

/// The pair of hooks for autograd.
py::tuple hooks(const std::shared_ptr<SavedTensors>& saved) {
  static PyMethodDef methods[] = {{"pack", &pack, METH_O, nullptr}, {"unpack", &unpack, METH_O, nullptr}};
  return py::make_tuple(function(methods[0], saved), function(methods[1], saved));
}

}  // namespace

}  // namespace memwatch

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace memwatch;
  module.doc() = "The compiled hot path of memwatch's recorder";
  module.def("put_kernel", &put_kernel, "Put the kernel on the dispatch key");
  module.def("take_kernel", &take_kernel, "Take it off");
  module.def("passed", [] { return passed.load(); }, "How many ops the kernel saw while no recorder ran");
  module.def("autograd_state", &autograd_state, py::arg("tensor"), py::arg("with_node"),
             "Give what autograd has noted of a tensor, and compute nothing");
  module.def("original_of", &original_of, "Give the tensor that a pack stands for");
  module.def("content_of", &content_of, "Give what a pack keeps, and the program's hook that unpacks it");
  module.def("hook", &hook, "Have hooks of the program take over from a pack");
  module.def("stamp_by_torch", [](bool wanted) { ticks_are_torchs = wanted; }, "Choose the clock");
  module.def("device_name", &Events::name_of, "Name the device of an allocator event");
  module.def("graph_walk", &graph_walk, py::arg("max_nodes"), "Make a walk along graphs of autograd");
  py::class_<Rows, std::shared_ptr<Rows>>(module, "Rows")
      .def(py::init<>())
      .def("__iadd__", &Rows::add_tuple, py::return_value_policy::reference)
      .def("__len__", &Rows::size)
      .def("take", &Rows::take);
  py::class_<Deaths, std::shared_ptr<Deaths>>(module, "Deaths")
      .def(py::init<>())
      .def_property_readonly("append", &note_death_of)
      .def("__len__", &Deaths::size)
      .def("clear", &Deaths::clear)
      .def("__iter__", [](const Deaths& deaths) { return py::iter(deaths.listed()); });
  py::class_<Account, std::shared_ptr<Account>>(module, "Account")
      .def_readwrite("live_bytes", &Account::live_bytes)
      .def_readwrite("entry_gone_bytes", &Account::entry_gone_bytes)
      .def_readonly("handed_on_bytes", &Account::handed_on_bytes)
      .def_readwrite("watch_bytes", &Account::watch_bytes)
      .def_readwrite("quiet_bytes", &Account::quiet_bytes)
      .def_readwrite("quiet_until_ticks", &Account::quiet_until_ticks)
      .def("is_quiet", &Account::is_quiet)
      .def_readwrite("limit_bytes", &Account::limit_bytes);
  py::class_<Storages, std::shared_ptr<Storages>>(module, "Storages")
      .def(py::init<py::object, py::object>(), py::arg("watched_storage"), py::arg("watched_tensor"))
      .def("keep_for", &Storages::keep_for)
      .def_readwrite("count", &Storages::count)
      .def_readwrite("hold", &Storages::hold)
      .def_readwrite("entry_count", &Storages::entry_count)
      .def("account", &Storages::account)
      .def("record_deaths", &Storages::record_deaths)
      .def("hold_one", &hold_one)
      .def_property_readonly("watched_number", &watched_number_of)
      .def("rewatch", &rewatch);
  py::class_<Stacks, std::shared_ptr<Stacks>>(module, "Stacks")
      .def(py::init<py::object>())
      .def_property_readonly("capture", &capture_of);
  py::class_<Recorder, std::shared_ptr<Recorder>>(module, "Recorder")
      .def(py::init<py::object, std::shared_ptr<Storages>, std::shared_ptr<Stacks>, py::object, std::shared_ptr<Rows>,
                    py::list>(),
           py::arg("callbacks"), py::arg("storages"), py::arg("stacks"), py::arg("context"), py::arg("uses"),
           py::arg("op_counter"))
      .def_property_readonly("ops", &Recorder::ops)
      .def_property_readonly("nodes", &Recorder::nodes)
      .def_property_readonly("views", &Recorder::views)
      .def_property_readonly("lifts", &Recorder::lifts)
      .def_property_readonly("numbers", &Recorder::numbers)
      .def("run", &run_of)
      .def("dispatch", &torch_dispatch)
      .def("flush_at", &Recorder::flush_at)
      .def_property_readonly("losses", [](const Recorder&) { return losses.load(); })
      .def("close", &Recorder::close)
      .def("intercept", [](const std::shared_ptr<Recorder>& recorder) { running = recorder; })
      .def("release", [](const std::shared_ptr<Recorder>&) { running.reset(); });
  py::class_<Pack>(module, "Pack")
      .def_readonly("packed", &Pack::packed)
      .def_readonly("version", &Pack::version)
      .def_readonly("output_nr", &Pack::output_nr)
      .def_property_readonly("node_name",
                             [](const Pack& pack) -> py::object {
                               return pack.node_name.empty() ? py::object(py::none()) : py::str(pack.node_name);
                             })
      .def("original", [](const Pack& pack) -> py::object {
        const at::Tensor original = pack.original();
        return original.defined() ? owned(THPVariable_Wrap(original)) : py::none();
      });
  py::class_<SavedTensors, std::shared_ptr<SavedTensors>>(module, "SavedTensors")
      .def(py::init<py::object, std::shared_ptr<Storages>, py::object, py::list>(), py::arg("callbacks"),
           py::arg("storages"), py::arg("context"), py::arg("op_counter"))
      .def_property_readonly("packs", &SavedTensors::packs)
      .def_property_readonly("unpacks", &SavedTensors::unpacks)
      .def("set_keeper", &SavedTensors::set_keeper)
      .def("set_outer", &SavedTensors::set_outer)
      .def("hooks", &hooks)
      .def("living_by_sequence", &SavedTensors::living_by_sequence)
      .def("close", &SavedTensors::close);
  py::class_<Allocator>(module, "Allocator")
      .def(py::init<>())
      .def("open", &Allocator::open)
      .def("close", &Allocator::close)
      .def("drop", &Allocator::drop)
      .def("enter_thread", &Allocator::enter_thread)
      .def("leave_thread", &Allocator::leave_thread)
      .def("highs", &Allocator::highs)
      .def("take", &Allocator::take);
}
