// SPDX-License-Identifier: Apache-2.0
// The copies of tensors on other devices than their producer's: one per (tensor, device).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"

namespace baechi::simulation {

struct TensorCopy {
  TensorId tensor;
  DeviceId to;
  Time start, end;        // of its transfer
  std::uint32_t readers;  // consumers on `to` that have not finished, and the step if it keeps it
};

class CopyTable {
 public:
  explicit CopyTable(std::size_t num_tensors) : rows_(num_tensors) {}

  void clear() { copies_.clear(); }  // the rows are written before they are read
  // Tensors come one after the other, each once; the copies of one come in the order of devices.
  void begin(TensorId tensor) { rows_[tensor].begin = rows_[tensor].end = size(); }
  void add(const TensorCopy& copy) {
    copies_.push_back(copy);
    rows_[copy.tensor].end = size();
  }
  std::size_t num_copies() const { return copies_.size(); }
  std::span<const TensorCopy> copies(TensorId tensor) const {
    const Row row = rows_[tensor];
    return std::span<const TensorCopy>(copies_).subspan(row.begin, row.end - row.begin);
  }
  // Requires that there is one.
  TensorCopy& find(TensorId tensor, DeviceId to) {
    std::uint32_t at = rows_[tensor].begin;
    while (copies_[at].to != to) ++at;
    return copies_[at];
  }

 private:
  struct Row {
    std::uint32_t begin = 0, end = 0;
  };
  std::uint32_t size() const { return static_cast<std::uint32_t>(copies_.size()); }

  std::vector<TensorCopy> copies_;
  IdVector<TensorId, Row> rows_;
};

}  // namespace baechi::simulation
