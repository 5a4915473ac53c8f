// SPDX-License-Identifier: Apache-2.0
// A libFuzzer target: hands its input to BAECHI_FUZZ_BODY, a body of parser_fuzz.h.
#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/parser_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  baechi::fuzz::BAECHI_FUZZ_BODY(std::string(data, data + size));
  return 0;
}
