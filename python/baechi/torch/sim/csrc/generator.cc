// SPDX-License-Identifier: Apache-2.0
// Random numbers of the simulated devices; see launch.h.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <cstring>
#include <mutex>

#include "capture.h"
#include "launch.h"
#include "streams.h"

namespace baechi::sim {
namespace {

class SimGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(int device)
      : GeneratorImpl(sim_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == caffe2::TypeMeta::Make<std::uint8_t>() &&
                    state.device().is_cpu(),
                "the state of a generator of a simulated device is 16 bytes on the CPU");
    const auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* bytes = static_cast<char*>(state.data_ptr());
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }

  at::Generator next() { return at::detail::createCPUGenerator(next_seed()); }

  std::uint64_t next_seed() {
    const std::lock_guard lock(mutex_);
    std::uint64_t z = seed_ + 0x9E3779B97F4A7C15ULL * ++offset_;  // splitmix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

 private:
  SimGenerator* clone_impl() const override {
    auto* copy = new SimGenerator(device_.index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

}  // namespace

at::Generator make_generator(int device) { return at::make_generator<SimGenerator>(device); }

const at::Generator& default_generator(int device) {
  static const auto* all = [] {
    auto* made = new std::array<at::Generator, kMaxDevices>;
    for (int d = 0; d < kMaxDevices; ++d) (*made)[static_cast<std::size_t>(d)] = make_generator(d);
    return made;
  }();
  return (*all)[static_cast<std::size_t>(device)];
}

at::Generator host_generator_for_next_operator(const at::Generator& generator) {
  auto* impl = dynamic_cast<SimGenerator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(impl != nullptr, "Expected a generator of a simulated device but found one of ",
              generator.device());
  const auto capture = capture_of(current_stream(generator.device().index()));
  if (!capture) return impl->next();
  // Every replay draws other numbers.
  at::Generator host = at::detail::createCPUGenerator();
  capture->before_replay([generator, host]() -> Task {
    auto* drawn = static_cast<SimGenerator*>(generator.unsafeGetGeneratorImpl());
    return [host, seed = drawn->next_seed()]() mutable { host.set_current_seed(seed); };
  });
  return host;
}

}  // namespace baechi::sim
