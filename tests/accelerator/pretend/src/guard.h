// How torch switches devices and streams, and records events.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "allocator.h"

namespace pretend {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device getDevice() const override { return {kType, current_device}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "there are two pretend accelerators, 0 and 1");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      current_device = device.index();
    }
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream(device, current_stream.at(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, 1); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device, 1); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = getStream(next.device());
    current_stream.at(index_of(next.device())) = next.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Streams::all().is_idle(index_of(stream.device()), stream.id());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Streams::all().finish(index_of(stream.device()), stream.id());
  }
  void synchronizeDevice(c10::DeviceIndex device) const override { Streams::all().finish(device); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    delete static_cast<Marker*>(*event);
    *event = new Marker(Streams::all().mark(index_of(stream.device()), stream.id()));
  }
  void block(void*, const c10::Stream&) const override {}  // ops run as they are called: nothing has to wait
  bool queryEvent(void* event) const override {
    return event == nullptr || Streams::all().has_passed(*static_cast<Marker*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      Streams::all().finish(static_cast<Marker*>(event)->device, static_cast<Marker*>(event)->stream);
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Marker*>(event); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Allocator::only().recordStream(data, stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) { return device.index() < 0 ? current_device : device.index(); }
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index_of(device)), id);
  }
};

}  // namespace pretend
