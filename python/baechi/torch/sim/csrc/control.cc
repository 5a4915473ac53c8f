// SPDX-License-Identifier: Apache-2.0
// What Python calls: plain C functions, so that no Python headers or bindings are needed.
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fallback.h"
#include "launch.h"
#include "memory.h"
#include "meta.h"
#include "streams.h"

using namespace baechi::sim;

#define BAECHI_EXPORT extern "C" __attribute__((visibility("default")))

BAECHI_EXPORT void baechi_sim_configure(const Settings* wanted) {
  synchronize_all();
  if (settings().longest_delay_ns != wanted->longest_delay_ns ||
      settings().delay_seed != wanted->delay_seed)
    stop_threads();  // their random generators start anew
  settings() = *wanted;
  set_checked(wanted->checked);
}

BAECHI_EXPORT int baechi_sim_device_count() { return settings().devices; }
BAECHI_EXPORT bool baechi_sim_forked() { return forked(); }
BAECHI_EXPORT void baechi_sim_stop() { stop_threads(); }

BAECHI_EXPORT std::int64_t baechi_sim_pinned() { return pinned_bytes().current; }
BAECHI_EXPORT std::int64_t baechi_sim_pinned_peak() { return pinned_bytes().peak; }
BAECHI_EXPORT void baechi_sim_reset_pinned_peak() { reset_pinned_peak(); }

BAECHI_EXPORT void baechi_sim_seed(int device, std::uint64_t seed) {
  auto generator = default_generator(device);
  generator.set_current_seed(seed);
}

namespace {

// Gives the operators of a library that have kernels for the CPU these; returns how many have. A
// library may have kernels in PyTorch's own operators for all devices, too, which would be
// preferred.
std::int64_t use_cpu_kernels(const std::string& library) {
  static auto* given = new std::vector<torch::Library>;  // outlives every thread
  auto& dispatcher = c10::Dispatcher::singleton();
  torch::Library ours(torch::Library::IMPL, library, c10::DispatchKey::PrivateUse1, __FILE__,
                      __LINE__);
  std::int64_t found = 0;
  for (const auto& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    const auto op = dispatcher.findSchema(name);
    if (name.getNamespace() != library || !op) continue;
    ++found;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;  // of a call before
    ours.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  given->push_back(std::move(ours));
  return found;
}

}  // namespace

// Operators, since these return a tensor or raise what went wrong.
TORCH_LIBRARY(baechi_sim, m) {
  m.def("get_rng_state(int device) -> Tensor", [](std::int64_t device) {
    return default_generator(static_cast<int>(device)).get_state();
  });
  m.def("set_rng_state(int device, Tensor state) -> ()",
        [](std::int64_t device, const at::Tensor& state) {
          at::Generator generator = default_generator(static_cast<int>(device));
          generator.set_state(state);
        });
  m.def("use_cpu_kernels(str library) -> int", use_cpu_kernels);
  m.def("work(int device, int duration_ns) -> ()", [](std::int64_t device, std::int64_t duration) {
    submit(current_stream(static_cast<int>(device)), {.name = "work", .duration_ns = duration},
           [] {});
  });
}

BAECHI_EXPORT const char* baechi_sim_take_mismatches() {
  thread_local std::string taken;
  taken = take_mismatches();
  return taken.c_str();
}

BAECHI_EXPORT void baechi_sim_host_work(std::int64_t duration) { charge_host(duration); }
BAECHI_EXPORT std::int64_t baechi_sim_virtual_now() { return virtual_now_ns(); }
BAECHI_EXPORT std::int64_t baechi_sim_virtual_host() { return virtual_host_ns(); }
BAECHI_EXPORT void baechi_sim_reset_virtual_clock() { reset_virtual_clock(); }
