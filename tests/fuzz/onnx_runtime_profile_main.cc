// SPDX-License-Identifier: Apache-2.0
// The libFuzzer target of the body baechi::fuzz::onnx_runtime_profile.
#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/parser_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  baechi::fuzz::onnx_runtime_profile(std::string(data, data + size));
  return 0;
}
