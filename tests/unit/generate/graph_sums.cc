// SPDX-License-Identifier: Apache-2.0
#include "unit/generate/graph_sums.h"

#include <algorithm>

#include "baechi/base/assert.h"
#include "baechi/cost/device_presets.h"

namespace baechi::testing {
namespace {

class Hash {
 public:
  void add(std::int64_t value) {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<std::uint64_t>(value) >> shift);
  }
  void add(std::string_view text) {
    add(static_cast<std::int64_t>(text.size()));
    for (const char c : text) byte(static_cast<unsigned char>(c));
  }
  std::uint64_t value() const { return value_; }

 private:
  void byte(std::uint64_t byte) { value_ = (value_ ^ (byte & 0xff)) * 0x100000001b3ULL; }
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

template <class IdType>
std::int64_t number(const std::optional<IdType>& id) {
  return id.has_value() ? static_cast<std::int64_t>(id->value()) + 1 : 0;
}

}  // namespace

GraphSums sums_of(const OpGraph& graph, std::string_view device_kind) {
  GraphSums sums;
  const auto& times = graph.times(graph.find_kind(device_kind).value());
  IdVector<OpId, Time> end(graph.num_ops());
  for (const OpId op : graph.topological_order()) {
    Time start;
    for (const Edge& edge : graph.in_edges(op)) start = std::max(start, end[edge.from]);
    end[op] = start + times[op].value();
    sums.longest_path = std::max(sums.longest_path, end[op]);
    sums.one_device += *times[op];
    sums.permanent += graph[op].permanent;
    sums.backward += graph[op].backward ? 1U : 0U;
    sums.backward_without_forward += graph[op].backward && !graph[op].forward ? 1U : 0U;
  }
  for (const TensorId tensor : graph.tensors()) {
    sums.outputs += graph.size(tensor);
    if (graph.consumers(tensor).empty()) sums.unread += graph.size(tensor);
  }
  return sums;
}

std::uint64_t checksum(const OpGraph& graph) {
  Hash hash;
  hash.add(graph.name());
  hash.add(graph.batch_size().value_or(0));
  for (const OpId op : graph.ops()) {
    const Operator& it = graph[op];
    hash.add(it.name);
    hash.add(it.kind);
    hash.add(it.permanent.count());
    hash.add(it.temporary.count());
    hash.add(it.backward ? 1 : 0);
    hash.add(number(it.forward));
    hash.add(number(it.group));
    for (const KindId kind : graph.kinds())
      hash.add(graph.times(kind)[op].value_or(Time(-1)).count());
    for (const TensorId tensor : graph.outputs(op)) hash.add(graph.size(tensor).count());
    for (const Edge& edge : graph.out_edges(op)) {
      hash.add(static_cast<std::int64_t>(edge.to.value()));
      hash.add(number(edge.tensor));
    }
  }
  return hash.value();
}

double compute_flops(const OpGraph& graph, std::string_view op_kind) {
  const DevicePreset& device = device_preset("rtx2080");
  const auto& times = graph.times(graph.find_kind("gpu").value());
  double seconds = 0;
  for (const OpId op : graph.ops())
    if (graph[op].kind == op_kind)
      seconds += static_cast<double>((times[op].value() - device.launch).count()) * 1e-9;
  return seconds * static_cast<double>(device.effective_flops(Precision::kFp32));
}

}  // namespace baechi::testing
