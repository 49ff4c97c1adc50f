// The module `_pretend`: registers the accelerator with torch, and shows the figures of its allocator.

#include <pybind11/pybind11.h>
#include <torch/csrc/Generator.h>
#include <torch/library.h>

#include "guard.h"
#include "kernels.h"

namespace py = pybind11;

namespace pretend {

namespace {

REGISTER_ALLOCATOR(kType, &Allocator::only());
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &at::native::resize_);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("set_.source_Storage", &at::native::set_);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("record_stream", &record_stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY(pretend, library) {
  library.def("copy_with_workspace(Tensor tensor, int nbytes) -> Tensor");
  library.impl("copy_with_workspace", c10::DispatchKey::PrivateUse1, &copy_with_workspace);
}

const char* name_of(State state) {
  return state == State::kFree ? "inactive" : state == State::kAllocated ? "active_allocated" : "active_pending_free";
}

py::dict shown(c10::DeviceIndex device, const char* address, const Segment& segment) {
  size_t allocated = 0, active = 0, requested = 0;
  py::list blocks;
  for (const auto& [start, block] : segment.blocks) {
    allocated += block.state == State::kAllocated ? block.nbytes : 0;
    active += block.state != State::kFree ? block.nbytes : 0;
    requested += block.requested;
    blocks.append(py::dict(py::arg("address") = reinterpret_cast<size_t>(start), py::arg("size") = block.nbytes,
                           py::arg("requested_size") = block.requested, py::arg("state") = name_of(block.state),
                           py::arg("frames") = py::list()));
  }
  return py::dict(py::arg("device") = static_cast<int>(device), py::arg("address") = reinterpret_cast<size_t>(address),
                  py::arg("total_size") = segment.nbytes, py::arg("allocated_size") = allocated,
                  py::arg("active_size") = active, py::arg("requested_size") = requested,
                  py::arg("stream") = segment.stream, py::arg("segment_type") = segment.small ? "small" : "large",
                  py::arg("segment_pool_id") = segment.pool, py::arg("is_expandable") = false,
                  py::arg("frames") = py::list(), py::arg("blocks") = blocks);
}

py::dict shown(const Entry& entry) {
  py::dict shown(py::arg("action") = entry.action, py::arg("size") = entry.nbytes, py::arg("stream") = entry.stream,
                 py::arg("time_us") = entry.time_us, py::arg("frames") = py::list());
  shown[entry.action == "oom" ? "device_free" : "addr"] = entry.address;
  return shown;
}

/// The state of all devices, as `torch.cuda.memory._snapshot()` shows it.
py::dict snapshot() {
  py::list segments, traces;
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    py::list trace;
    Allocator::only().look(device, [&](const auto& held, const std::vector<Entry>& history) {
      for (const auto& [address, segment] : held) {
        segments.append(shown(device, address, segment));
      }
      for (const Entry& entry : history) {
        trace.append(shown(entry));
      }
    });
    traces.append(trace);
  }
  return py::dict(py::arg("segments") = segments, py::arg("device_traces") = traces,
                  py::arg("allocator_settings") = py::dict(), py::arg("external_annotations") = py::list());
}

py::object default_generator(c10::DeviceIndex device) {
  return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(Generator::of_device(device)));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  module.attr("DEVICES") = static_cast<int>(kDevices);
  module.def("snapshot", &snapshot);
  module.def("default_generator", &default_generator);
  module.def("record_history", [](bool recorded) { Allocator::only().record_history(recorded); });
  module.def("set_limit", [](c10::DeviceIndex device, size_t nbytes) { Allocator::only().set_limit(device, nbytes); });
  module.def("set_outside",
             [](c10::DeviceIndex device, size_t nbytes) { Allocator::only().set_outside(device, nbytes); });
  module.def("set_pool", [](c10::DeviceIndex device, c10::CaptureId_t first, c10::CaptureId_t second) {
    Allocator::only().set_pool(device, {first, second});
  });
  module.def("hold", [](c10::DeviceIndex device, c10::StreamId stream, bool held) {
    Streams::all().hold(device, stream, held);
  });
  module.def("pinned_bytes", [] { return Pinned::only().nbytes(); });
  module.def("take", [](c10::DeviceIndex device, size_t nbytes) {
    const c10::DeviceGuard guard(c10::Device(kType, device));
    return reinterpret_cast<size_t>(Allocator::only().raw_allocate(nbytes));
  });
  module.def("give_back", [](size_t address) { Allocator::only().raw_deallocate(reinterpret_cast<void*>(address)); });
}

}  // namespace pretend
