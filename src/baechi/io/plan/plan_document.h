// SPDX-License-Identifier: Apache-2.0
// A plan as its file has it: operators by name, not yet matched with a graph. Private to io/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct PlanDocument {
  struct Operator {
    std::string_view name;
    OpSlot slot;
    std::optional<Time> asked = {};
    std::size_t offset = 0;  // in the text, for errors
  };
  struct Transfer {
    std::string_view producer;
    std::uint32_t port = 0;
    baechi::Transfer transfer;  // without its tensor
    std::size_t offset = 0;
  };
  struct Run {  // of an operator, by its place in `operators`
    std::uint32_t op = 0;
    std::optional<std::uint32_t> micro_batch;
    std::size_t offset = 0;
  };
  struct PeakOperator {
    DeviceId device;
    std::string_view name;
    std::size_t offset = 0;
  };
  struct Again {  // an operator that runs a second time
    std::string_view name;
    std::optional<std::string_view> after;
    std::size_t offset = 0;
  };
  struct Reduced {  // a tensor that replicas reduce
    std::string_view producer;
    std::uint32_t port = 0;
    std::size_t offset = 0;
  };
  struct Fetch {
    std::optional<std::string_view> after;
    std::vector<std::string_view> readers;
  };
  struct Away {  // a tensor that a host keeps
    std::string_view producer;
    std::uint32_t port = 0;
    std::vector<Fetch> fetches;
    std::size_t offset = 0;
  };
  std::size_t num_operators = 0;  // that the graph had
  std::size_t num_operators_offset = 0;
  std::size_t graph_name_offset = 0, memory_mode_offset = 0, makespan_offset = 0;
  Plan plan;  // all but the slots and the tensors and operators that need the graph
  std::vector<Operator> operators;
  std::vector<Transfer> transfers;
  std::vector<PeakOperator> peak_operators;
  std::vector<std::vector<Run>> runs;  // by device; of a step of micro-batches
  std::size_t runs_offset = 0;
  std::vector<Again> recomputed;
  std::vector<std::vector<Reduced>> buckets;
  std::size_t replicas_offset = 0;
  bool replicas_bound = false;  // their tensors have ids
  std::vector<Away> away;
  std::vector<std::string_view> on_store;
  std::size_t residency_offset = 0;
  bool has_residency() const { return !plan.residency.store.empty(); }
};

// Checks all that can be checked without the graph. The text and `json` must outlive the result.
PlanDocument read_plan_document(JsonReader& json);

}  // namespace baechi
