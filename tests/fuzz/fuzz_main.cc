// SPDX-License-Identifier: Apache-2.0
// libFuzzer's program under the name fuzz_NAME: hands its input to the body NAME of parser_fuzz.h.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fuzz/parser_fuzz.h"

namespace {

const baechi::fuzz::Body* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(const int*, const char* const* const* arguments) {
  const std::string_view program = (*arguments)[0];
  for (const baechi::fuzz::Body& body : baechi::fuzz::kParserBodies)
    if (program.ends_with("/fuzz_" + std::string(body.name))) chosen = &body;
  if (chosen != nullptr) return 0;
  std::fprintf(stderr, "%s: not called fuzz_NAME\n", (*arguments)[0]);
  std::exit(1);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->run(std::string(data, data + size));
  return 0;
}
