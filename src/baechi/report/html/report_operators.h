// SPDX-License-Identifier: Apache-2.0
// The operators that a report shows, as columns; everything else names them by their row. Private
// to report/.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/io/json/json_writer.h"

namespace baechi {

class ReportOperators {
 public:
  explicit ReportOperators(const StepGraph& step)
      : step_(step), graph_(step.graph()), rows_(graph_.num_ops()) {}

  void show(OpId op) { rows_[op] = 0; }
  void number();  // after the last show(): rows are in operator order

  // Absent for operators that are not shown.
  std::optional<std::size_t> row(OpId op) const { return rows_[op]; }

  // "names" (each as the length it shares with the one before it, and the rest), "kinds" and
  // "operators".
  void write(JsonWriter& json) const;

 private:
  void write_names(JsonWriter& json) const;

  const StepGraph step_;
  const OpGraph& graph_;
  IdVector<OpId, std::optional<std::size_t>> rows_;
  std::vector<OpId> shown_;
};

// {"name": [of(item), ...]} as one field.
template <class Range, class Of>
void write_column(JsonWriter& json, std::string_view name, const Range& items, const Of& of) {
  json.key(name);
  json.begin_array();
  for (const auto& item : items) json.value(of(item));
  json.end_array();
}

}  // namespace baechi
