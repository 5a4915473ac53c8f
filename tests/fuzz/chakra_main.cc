// SPDX-License-Identifier: Apache-2.0
// The libFuzzer target of the body baechi::fuzz::chakra.
#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/parser_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  baechi::fuzz::chakra(std::string(data, data + size));
  return 0;
}
