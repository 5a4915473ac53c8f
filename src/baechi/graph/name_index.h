// SPDX-License-Identifier: Apache-2.0
// Finds operators by name. The names stay in the operators: the index keeps eight bytes per slot,
// so that a million names need few cache lines and few pages.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/overflow.h"

namespace baechi {

class NameIndex {
 public:
  void reserve(std::size_t count) {
    if (const std::size_t slots = std::bit_ceil(2 * count + 1); slots > slots_.size()) grow(slots);
  }

  // A hint that `name` is about to be looked up: fetches its slot, which is seldom in a cache.
  void expect(std::string_view name) const {
    if (!slots_.empty()) prefetch(&slots_[hash_of(name) & (slots_.size() - 1)]);
  }

  // `name_of(op)` is the name that `op` was inserted with.
  template <class NameOf>
  std::optional<OpId> find(std::string_view name, const NameOf& name_of) const {
    if (slots_.empty()) return std::nullopt;
    const Slot& slot = slots_[probe(hash_of(name), name, name_of)];
    if (slot.op_plus_one == 0) return std::nullopt;
    return OpId(slot.op_plus_one - 1);
  }

  // False, and nothing changes, when the name is there.
  template <class NameOf>
  bool insert(std::string_view name, OpId op, const NameOf& name_of) {
    reserve(size_ + 1);
    const std::uint32_t hash = hash_of(name);
    Slot& slot = slots_[probe(hash, name, name_of)];
    if (slot.op_plus_one != 0) return false;
    slot = {hash, op.value() + 1};
    ++size_;
    return true;
  }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t op_plus_one = 0;  // 0: free
  };

  static std::uint32_t hash_of(std::string_view name) {
    const std::uint64_t hash = std::hash<std::string_view>{}(name);
    return static_cast<std::uint32_t>(hash ^ (hash >> 32));
  }

  // The slot of the name, or the free one where it would go. At most half of the slots are taken.
  template <class NameOf>
  std::size_t probe(std::uint32_t hash, std::string_view name, const NameOf& name_of) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash & mask;
    while (slots_[at].op_plus_one != 0 &&
           (slots_[at].hash != hash || name_of(OpId(slots_[at].op_plus_one - 1)) != name))
      at = (at + 1) & mask;
    return at;
  }

  void grow(std::size_t num_slots) {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(num_slots));
    for (const Slot& slot : old) {
      if (slot.op_plus_one == 0) continue;
      std::size_t at = slot.hash & (num_slots - 1);
      while (slots_[at].op_plus_one != 0) at = (at + 1) & (num_slots - 1);
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two of them
  std::size_t size_ = 0;
};

}  // namespace baechi
