// SPDX-License-Identifier: Apache-2.0
// The wire format of Protocol Buffers, written field by field for tests of its readers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "baechi/io/protobuf/wire_reader.h"

namespace baechi {

inline std::string number(std::uint64_t field, std::uint64_t value) {
  std::string out;
  append_varint(out, field << 3);
  append_varint(out, value);
  return out;
}
inline std::string field(std::uint64_t number, std::string_view bytes) {
  std::string out;
  append_bytes_field(out, number, bytes);
  return out;
}

}  // namespace baechi
