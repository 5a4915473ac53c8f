// SPDX-License-Identifier: Apache-2.0
// A reader of the Protocol Buffers wire format, one message at a time, without descriptors and
// without copies. Private to io/.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "baechi/base/error.h"

namespace baechi {

// The fields of one message in the order of the bytes: next(), then read or ignore the value.
class WireReader {
 public:
  enum class Type : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  // `document` is all of the input, `message` a part of it; both must outlive the reader. `place`
  // stands for the file in errors.
  WireReader(std::string_view document, std::string_view message, const std::string& place)
      : document_(document),
        place_(&place),
        at_(message.data()),
        end_(at_ + message.size()),
        field_begin_(at_) {}

  // Goes to the next field; false at the end of the message.
  bool next() {
    field_begin_ = at_;
    if (at_ == end_) return false;
    const std::uint64_t tag = read_varint();
    field_ = tag >> 3;
    if (field_ == 0 || field_ > kMaxField) fail("not a protocol buffer: bad field number");
    switch (tag & 7) {
      case 0:
        number_ = read_varint();
        type_ = Type::kVarint;
        return true;
      case 1:
        type_ = Type::kFixed64;
        take(8);
        return true;
      case 2:
        type_ = Type::kBytes;
        take(read_varint());
        return true;
      case 5:
        type_ = Type::kFixed32;
        take(4);
        return true;
      default:
        fail("not a protocol buffer: unknown wire type");
    }
  }

  std::uint64_t field() const { return field_; }
  Type type() const { return type_; }
  // The whole field, tag included.
  std::string_view raw() const {
    return {field_begin_, static_cast<std::size_t>(at_ - field_begin_)};
  }
  std::string_view bytes() const {
    if (type_ != Type::kBytes) fail("expected text or a message in field " + field_name());
    return bytes_;
  }
  WireReader message() const { return WireReader(document_, bytes(), *place_); }
  std::int64_t integer() const {
    if (type_ != Type::kVarint) fail("expected an integer in field " + field_name());
    return static_cast<std::int64_t>(number_);
  }
  float number() const {
    if (type_ != Type::kFixed32) fail("expected a number in field " + field_name());
    std::uint32_t bits = 0;
    for (unsigned i = 0; i < 4; ++i)
      bits |= std::uint32_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
    return std::bit_cast<float>(bits);
  }
  // Calls use(value) for every value of a repeated integer field, packed or not.
  template <class Use>
  void integers(const Use& use) const {
    if (type_ == Type::kVarint) return use(integer());
    WireReader values(document_, bytes(), *place_);
    while (values.at_ != values.end_) use(static_cast<std::int64_t>(values.read_varint()));
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw InputError(*place_ + ": byte " + std::to_string(field_begin_ - document_.data()), reason);
  }

 private:
  static constexpr std::uint64_t kMaxField = (std::uint64_t{1} << 29) - 1;

  std::string field_name() const { return std::to_string(field_); }

  std::uint64_t read_varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == end_) fail("the file is cut off, or not a protocol buffer");
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    fail("not a protocol buffer: an integer of more than 64 bits");
  }

  void take(std::uint64_t size) {
    if (size > static_cast<std::uint64_t>(end_ - at_))
      fail("the file is cut off, or not a protocol buffer");
    bytes_ = {at_, static_cast<std::size_t>(size)};
    at_ += size;
  }

  std::string_view document_;
  const std::string* place_;
  const char* at_;
  const char* end_;
  const char* field_begin_;
  std::uint64_t field_ = 0, number_ = 0;
  Type type_ = Type::kVarint;
  std::string_view bytes_;
};

// The other direction, for the few fields that we write.
inline void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}
inline void append_bytes_field(std::string& out, std::uint64_t field, std::string_view bytes) {
  append_varint(out, field << 3 | 2);
  append_varint(out, bytes.size());
  out += bytes;
}

}  // namespace baechi
