// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph/dnn_partitioning.h"

#include <tsl/robin_map.h>

#include <array>
#include <cmath>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/io/text/source_place.h"

namespace baechi {
namespace {

// CPUs have no memory limit: more than any real graph holds, and far from overflow.
constexpr Bytes kUnlimitedMemory{std::int64_t{1} << 50};

class InstanceReader {
 public:
  InstanceReader(std::string_view text, const std::string& place) : json_(text, place) {}

  DnnPartitioning read() {
    static constexpr std::array<std::string_view, 5> kNames{"nodes", "edges", "maxSizePerFPGA",
                                                            "maxFPGAs", "maxCPUs"};
    const std::uint64_t seen = read_known_fields(kNames, [&](std::size_t field) {
      switch (field) {
        case 0:
          return json_.read_array([&] { read_node(); });
        case 1:
          return json_.read_array([&] { read_edge(); });
        case 2:
          instance_.accelerator_capacity = read_amount();
          return;
        case 3:
          instance_.num_accelerators = read_count();
          return;
        default:
          instance_.num_cpus = read_count();
          return;
      }
    });
    json_.require_fields(kNames, seen, 4);
    json_.finish();
    for (const RawEdge& edge : raw_edges_)
      instance_.edges.push_back(
          {position(edge.from, edge, "sourceId"), position(edge.to, edge, "destId"), edge.cost});
    return std::move(instance_);
  }

 private:
  struct RawEdge {
    std::int64_t from = 0, to = 0;
    double cost = 0;
    std::size_t offset = 0;
  };

  // As JsonReader::read_fields(), but fields with other names are skipped.
  template <class Read>
  std::uint64_t read_known_fields(std::span<const std::string_view> names, const Read& read) {
    std::uint64_t seen = 0;
    json_.enter_object();
    while (json_.next_key()) {
      std::size_t field = 0;
      while (field < names.size() && names[field] != json_.key()) ++field;
      if (field == names.size()) {
        json_.skip_value();
        continue;
      }
      if ((seen >> field & 1) != 0) json_.fail("the field occurs twice");
      seen |= std::uint64_t{1} << field;
      read(field);
    }
    return seen;
  }

  double read_amount() {
    const double value = json_.read_double();
    if (value < 0) json_.fail("cannot be negative");
    return value;
  }
  std::int64_t read_count() {
    const std::int64_t count = json_.read_non_negative("a number of devices");
    if (count > std::int64_t{kMaxDevices})
      json_.fail("more than " + std::to_string(kMaxDevices) + " devices");
    return count;
  }
  bool read_flag() {  // true, false, 1 or 0
    if (json_.peek() == JsonReader::Type::kBoolean) return json_.read_bool();
    const std::int64_t flag = json_.read_integer();
    if (flag != 0 && flag != 1) json_.fail("expected true, false, 1 or 0");
    return flag == 1;
  }

  void read_node() {
    static constexpr std::array<std::string_view, 8> kNames{
        "id",   "supportedOnFpga", "cpuLatency", "fpgaLatency", "size",
        "name", "isBackwardNode",  "colorClass"};
    DnnPartitioning::Node node;
    const std::uint64_t seen = read_known_fields(kNames, [&](std::size_t field) {
      switch (field) {
        case 0:
          node.id = json_.read_integer();
          break;
        case 1:
          node.on_accelerator = read_flag();
          break;
        case 2:
          node.cpu_latency = read_amount();
          break;
        case 3:
          node.accelerator_latency = read_amount();
          break;
        case 4:
          node.size = read_amount();
          break;
        case 5:
          node.name = std::string(json_.read_string());
          break;
        case 6:
          node.backward = read_flag();
          break;
        default:
          node.color_class = json_.read_integer();
          break;
      }
    });
    json_.require_fields(kNames, seen, 5);
    if (node.name.empty()) node.name = "node" + std::to_string(node.id);
    if (!positions_.emplace(node.id, instance_.nodes.size()).second)
      json_.fail("the id " + std::to_string(node.id) + " occurs twice");
    instance_.nodes.push_back(std::move(node));
  }

  void read_edge() {
    static constexpr std::array<std::string_view, 3> kNames{"sourceId", "destId", "cost"};
    RawEdge edge;
    const std::uint64_t seen = read_known_fields(kNames, [&](std::size_t field) {
      switch (field) {
        case 0:
          edge.from = json_.read_integer();
          break;
        case 1:
          edge.to = json_.read_integer();
          break;
        default:
          edge.cost = read_amount();
          break;
      }
    });
    json_.require_fields(kNames, seen, 3);
    edge.offset = json_.offset();
    raw_edges_.push_back(edge);
  }

  std::size_t position(std::int64_t id, const RawEdge& edge, const char* field) const {
    const auto at = positions_.find(id);
    if (at == positions_.end())
      json_.fail_at(edge.offset,
                    "$.edges[" + std::to_string(&edge - raw_edges_.data()) + "]." + field,
                    "there is no node with the id " + std::to_string(id));
    return at->second;
  }

  JsonReader json_;
  DnnPartitioning instance_;
  std::vector<RawEdge> raw_edges_;
  tsl::robin_map<std::int64_t, std::size_t> positions_;
};

// value * factor to the nearest integer.
std::int64_t rounded(double value, double factor, const std::string& what) {
  const double scaled = std::floor(value * factor + 0.5);
  if (!(scaled < 9.0e18)) throw InputError(what + " is too large");
  return static_cast<std::int64_t>(scaled);
}

constexpr double kNanosecondsPerMillisecond = 1e6;

}  // namespace

DnnPartitioning parse_dnn_partitioning(std::string_view text, const std::string& place) {
  return InstanceReader(text, place).read();
}

OpGraph graph_of(const DnnPartitioning& instance, const std::string& place) try {
  OpGraphBuilder builder;
  for (const DnnPartitioning::Node& node : instance.nodes) {
    const std::string who = "node '" + node.name + "': ";
    const OpId op = builder.add_operator({.name = node.name,
                                          .permanent = Bytes(rounded(node.size, 1, who + "size")),
                                          .backward = node.backward});
    const auto set_time = [&](const char* kind, double latency) {
      builder.set_time(op, kind, Time(rounded(latency, kNanosecondsPerMillisecond, who + "time")));
    };
    set_time("cpu", node.cpu_latency);
    if (node.on_accelerator) set_time("accelerator", node.accelerator_latency);
    if (node.color_class.has_value())
      builder.add_to_group(op, "color " + std::to_string(*node.color_class));
  }
  std::vector<std::optional<double>> cost_of(instance.nodes.size());
  const double bytes_per_ms = static_cast<double>(kDnnPartitioningBandwidth.count()) / 1000;
  for (const DnnPartitioning::Edge& edge : instance.edges) {
    const OpId from(edge.from), to(edge.to);
    const std::string who = "node '" + instance.nodes[edge.from].name + "': ";
    if (!cost_of[edge.from].has_value())
      builder.add_output(from, Bytes(rounded(edge.cost, bytes_per_ms, who + "transfer cost")));
    else if (*cost_of[edge.from] != edge.cost)
      throw InputError(who + "the costs of its outgoing edges differ");
    cost_of[edge.from] = edge.cost;
    builder.connect(*builder.output(from, 0), to);
  }
  return std::move(builder).build();
} catch (const InputError& error) {
  throw InputError(place, printable(error.what()));  // names are the file's own
}

ClusterSpec cluster_of(const DnnPartitioning& instance, const std::string& place) {
  ClusterSpec spec;
  const auto add = [&](const char* kind, std::int64_t count, Bytes capacity) {
    for (std::int64_t i = 0; i < count; ++i)
      spec.devices.push_back(
          {std::string(kind) + ":" + std::to_string(i), kind, capacity, "localhost", kFullSpeed});
  };
  add("accelerator", instance.num_accelerators,
      Bytes(rounded(instance.accelerator_capacity, 1, place + ": $.maxSizePerFPGA")));
  add("cpu", instance.num_cpus, kUnlimitedMemory);

  // Between accelerators a tensor goes out to the host and in again; between CPUs it stays.
  const auto link = [&](LinkScope scope, const char* from, const char* to,
                        std::optional<Bandwidth> bandwidth) {
    LinkRule rule;
    rule.scope = scope;
    rule.from = from;
    rule.to = to;
    rule.bandwidth = bandwidth;
    spec.links.push_back(rule);
  };
  link(LinkScope::kDefault, "", "", Bandwidth(kDnnPartitioningBandwidth.count() / 2));
  if (instance.num_cpus > 0) {
    link(LinkScope::kKinds, "cpu", "cpu", std::nullopt);
    if (instance.num_accelerators > 0)
      link(LinkScope::kKinds, "accelerator", "cpu", kDnnPartitioningBandwidth);
  }
  try {
    return Cluster(std::move(spec)).spec();
  } catch (const InputError& error) {
    throw InputError(place, error.what());
  }
}

}  // namespace baechi
