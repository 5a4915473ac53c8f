// SPDX-License-Identifier: Apache-2.0
// What PyTorch's generic code asks of a device: guards, streams, events, the accelerator hooks.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "capture.h"
#include "launch.h"
#include "memory.h"
#include "streams.h"

namespace baechi::sim {
namespace {

MarkPtr& mark_of(void* event) { return *static_cast<MarkPtr*>(event); }

struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    set_current_device(checked_device(device.index()));
    return before;
  }
  c10::Device getDevice() const override { return sim_device(current_device()); }
  void setDevice(c10::Device device) const override {
    set_current_device(checked_device(device.index()));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < settings().devices)
      set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(settings().devices);
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(checked_device(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(checked_device(device.index()), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return pool_stream(checked_device(device.index()));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return pool_stream(checked_device(device.index()));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_current_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override { return is_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    synchronize_device(checked_device(index));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new MarkPtr;
    mark_of(*event) = sim::record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr && mark_of(event)) wait_for(stream, mark_of(event));
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr || !mark_of(event)) return true;
    refuse_captured(mark_of(event), "cannot ask whether an event has passed");
    return mark_of(event)->passed;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr && mark_of(event)) synchronize(mark_of(event), current_device());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<MarkPtr*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "both events must have been recorded");
    const MarkPtr& start = mark_of(first);
    const MarkPtr& end = mark_of(second);
    TORCH_CHECK(start->passed && end->passed, "both events must have completed");
    if (settings().virtual_clock)
      return static_cast<double>(end->virtual_ns - start->virtual_ns) / 1e6;
    return std::chrono::duration<double, std::milli>(end->when - start->when).count();
  }

  void recordDataPtrOnStream(const c10::DataPtr& pointer,
                             const c10::Stream& stream) const override {
    device_allocator().recordStream(pointer, stream);
  }
};

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !forked(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(settings().devices);
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_current_device(checked_device(device));
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = getCurrentDevice();
    set_current_device(checked_device(device));
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(checked_device(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return make_generator(checked_device(device));
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard)

const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new SimHooks);
  return true;
}();

}  // namespace
}  // namespace baechi::sim
