// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/plan_document.h"

#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include <algorithm>
#include <array>
#include <utility>

#include "baechi/base/in_quotes.h"
#include "baechi/io/cluster/cluster_json.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/plan/plan_evidence.h"

namespace baechi {
namespace {

class PlanReader {
 public:
  explicit PlanReader(JsonReader& json) : json_(json) {}
  PlanDocument read();

 private:
  void read_graph();
  void read_cluster();
  void read_micro_batches();
  void read_devices();
  PlanDevice read_device(DeviceId expected);
  void read_operator();
  void read_runs();
  PlanDocument::Run read_run();
  void read_recomputed();
  void read_replicas();
  void read_residency();
  void read_away();
  PlanDocument::Fetch read_fetch();
  void read_transfer();
  void read_tensor(PlanDocument::Transfer& transfer);
  DeviceId read_device_name();
  ExecutionOrder read_order();
  void check_document();

  JsonReader& json_;
  PlanDocument document_;
  Plan& plan_ = document_.plan;
  bool has_transfers_ = false, has_runs_ = false;
  std::optional<double> gap_;
  std::size_t gap_offset_ = 0;
  tsl::robin_map<std::string, DeviceId> devices_;
  tsl::robin_set<std::string_view> operator_names_;
};

constexpr std::int64_t kMostMicroBatches = 4096;

PlanDocument PlanReader::read() {
  const auto array = [&](const auto& read_item) {
    return [this, read_item] { json_.read_array(read_item); };
  };
  // Of what names devices, and of what says which operators there are.
  const auto of_devices = [&](const auto& read) {
    return [this, read] {
      if (devices_.empty()) json_.fail("needs \"cluster\" before it, whose devices it names");
      read();
    };
  };
  const auto of_operators = [&](const auto& read) {
    return [this, read] {
      if (!document_.operators.empty()) json_.fail("belongs before \"operators\"");
      read();
    };
  };
  json_.peek();
  json_.read_object(10, JsonField{"format", [&] { read_format(json_, "baechi-plan"); }},
                    JsonField{"version", [&] { read_version(json_); }},
                    JsonField{"baechi", [&] { json_.read_string(); }},
                    JsonField{"graph", [&] { read_graph(); }},
                    JsonField{"cluster", [&] { read_cluster(); }},
                    JsonField{"memory_mode",
                              [&] {
                                plan_.memory_mode = read_memory_mode(json_);
                                document_.memory_mode_offset = json_.offset();
                              }},
                    JsonField{"method", [&] { plan_.method = std::string(json_.read_string()); }},
                    JsonField{"makespan",
                              [&] {
                                plan_.schedule.makespan = read_time(json_);
                                document_.makespan_offset = json_.offset();
                              }},
                    JsonField{"devices", of_devices([&] { read_devices(); })},
                    JsonField{"operators", of_devices(array([&] { read_operator(); }))},
                    JsonField{"transfers", of_devices([&] {
                                has_transfers_ = true;
                                json_.read_array([&] { read_transfer(); });
                              })},
                    JsonField{"fallbacks", [&] { plan_.fallbacks = read_texts(json_); }},
                    JsonField{"gap",
                              [&] {
                                gap_ = json_.read_double();
                                gap_offset_ = json_.offset();
                              }},
                    JsonField{"bounds", [&] { plan_.bounds = read_bounds(json_); }},
                    JsonField{"methods", of_devices([&] {
                                plan_.methods = read_methods(json_, plan_.cluster.devices.size());
                              })},
                    JsonField{"notes", [&] { plan_.notes = read_texts(json_); }},
                    JsonField{"passes", [&] { plan_.passes = read_passes(json_); }},
                    JsonField{"order", [&] { plan_.order = read_order(); }},
                    JsonField{"micro_batches", [&] { read_micro_batches(); }},
                    JsonField{"runs",
                              [&] {
                                json_.peek();
                                document_.runs_offset = json_.offset();
                                has_runs_ = true;
                                read_runs();
                              }},
                    JsonField{"recomputed", of_operators(array([&] { read_recomputed(); }))},
                    JsonField{"residency", of_operators([&] { read_residency(); })},
                    JsonField{"replicas", of_operators([&] { read_replicas(); })});
  if (plan_.micro_batches == 1 && !has_transfers_) json_.fail("the field \"transfers\" is missing");
  if (plan_.micro_batches > 1 && !has_runs_) json_.fail("the field \"runs\" is missing");
  if (plan_.micro_batches > 1 && plan_.order != ExecutionOrder::kPlanned)
    json_.fail("a step of micro-batches runs in its planned order");
  json_.finish();
  check_document();
  return std::move(document_);
}

void PlanReader::read_cluster() {
  plan_.cluster = read_cluster_object(json_, false);
  for (std::size_t i = 0; i < plan_.cluster.devices.size(); ++i)
    devices_.emplace(plan_.cluster.devices[i].name, DeviceId(i));
}

void PlanReader::read_micro_batches() {
  const std::int64_t number = json_.read_non_negative("a number of micro-batches");
  if (number < 2 || number > kMostMicroBatches)
    json_.fail("expected 2 to " + std::to_string(kMostMicroBatches) + " micro-batches");
  if (!document_.operators.empty()) json_.fail("belongs before \"operators\"");
  plan_.micro_batches = static_cast<std::uint32_t>(number);
}

void PlanReader::read_graph() {
  json_.read_object(2,
                    JsonField{"name",
                              [&] {
                                plan_.graph_name = std::string(json_.read_string());
                                document_.graph_name_offset = json_.offset();
                              }},
                    JsonField{"operators", [&] {
                                document_.num_operators = static_cast<std::size_t>(
                                    json_.read_non_negative("a number of operators"));
                                document_.num_operators_offset = json_.offset();
                              }});
}

ExecutionOrder PlanReader::read_order() {
  const std::string_view name = json_.read_string();
  std::string known;
  for (const ExecutionOrderEntry& entry : execution_orders()) {
    if (entry.name == name) return entry.order;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  json_.fail("expected one of " + known + ", found " + in_quotes(name));
}

void PlanReader::read_devices() {
  json_.read_array([&] {
    const DeviceId expected(plan_.devices.size());
    if (expected.index() >= plan_.cluster.devices.size())
      json_.fail("more devices than the cluster has");
    plan_.devices.push_back(read_device(expected));
  });
  for (const PlanDevice& device : plan_.devices)
    if (device.run_peak.has_value() != plan_.has_run_peaks())
      json_.fail("\"run_peak\" is given for some devices; give it for all");
  if (plan_.devices.size() != plan_.cluster.devices.size())
    json_.fail("expected one entry for each of the cluster's " +
               std::to_string(plan_.cluster.devices.size()) + " devices, found " +
               std::to_string(plan_.devices.size()));
}

PlanDevice PlanReader::read_device(DeviceId expected) {
  PlanDevice device;
  json_.read_object(
      6,
      JsonField{"name",
                [&] {
                  if (read_device_name() != expected)
                    json_.fail("the devices are not in the cluster's order");
                }},
      JsonField{"peak", [&] { device.peak = read_bytes(json_); }},
      JsonField{"peak_at", [&] { device.peak_at = read_time(json_); }},
      JsonField{"busy", [&] { device.busy = read_time(json_); }},
      JsonField{"sent", [&] { device.sent = read_bytes(json_); }},
      JsonField{"received", [&] { device.received = read_bytes(json_); }},
      JsonField{"run_peak", [&] { device.run_peak = read_bytes(json_); }},
      JsonField{"peak_operator", [&] {
                  const std::string_view name = json_.read_string();
                  document_.peak_operators.push_back({expected, name, json_.offset()});
                }});
  return device;
}

DeviceId PlanReader::read_device_name() {
  const std::string_view name = json_.read_string();
  const auto at = devices_.find(std::string(name));
  if (at == devices_.end()) json_.fail("the cluster has no device " + in_quotes(name));
  return at->second;
}

void PlanReader::read_operator() {
  PlanDocument::Operator op;
  const std::uint64_t seen = json_.read_object(
      plan_.micro_batches > 1 ? 2 : 4,
      JsonField{"name",
                [&] {
                  op.name = json_.read_string();
                  op.offset = json_.offset();
                  if (!operator_names_.insert(op.name).second)
                    json_.fail("operator '" + std::string(op.name) + "' is placed twice");
                }},
      JsonField{"device", [&] { op.slot.device = read_device_name(); }},
      JsonField{"start", [&] { op.slot.start = read_time(json_); }},
      JsonField{"end", [&] { op.slot.end = read_time(json_); }},
      JsonField{"asked", [&] { op.asked = read_time(json_); }});
  if (plan_.micro_batches > 1 && seen >= 4)
    json_.fail("a step of micro-batches tells the order of its runs, not their times");
  if (op.slot.end < op.slot.start) json_.fail("ends before it starts");
  document_.operators.push_back(op);
}

// [operator, micro-batch], or [operator] for what runs once per step; a list for every device.
void PlanReader::read_runs() {
  if (plan_.micro_batches == 1) json_.fail("needs \"micro_batches\" before it");
  json_.read_array([&] {
    document_.runs.emplace_back();
    json_.read_array([&] { document_.runs.back().push_back(read_run()); });
  });
  if (document_.runs.size() != plan_.cluster.devices.size())
    json_.fail("expected one list for each of the cluster's " +
               std::to_string(plan_.cluster.devices.size()) + " devices, found " +
               std::to_string(document_.runs.size()));
}

PlanDocument::Run PlanReader::read_run() {
  const auto number = [&](const char* what) {
    const std::int64_t value = json_.read_non_negative(what);
    if (value > 0xFFFFFFFE) json_.fail("the number is too large");
    return static_cast<std::uint32_t>(value);
  };
  PlanDocument::Run run;
  json_.enter_array();
  if (!json_.next_item()) json_.fail("expected [operator, micro-batch], found an empty array");
  run.op = number("an operator's index");
  run.offset = json_.offset();
  if (!json_.next_item()) return run;
  run.micro_batch = number("a micro-batch");
  if (json_.next_item()) json_.fail("expected [operator, micro-batch], found a third item");
  return run;
}

void PlanReader::read_recomputed() {
  PlanDocument::Again again;
  json_.read_object(1,
                    JsonField{"operator",
                              [&] {
                                again.name = json_.read_string();
                                again.offset = json_.offset();
                              }},
                    JsonField{"after", [&] { again.after = json_.read_string(); }});
  document_.recomputed.push_back(again);
}

void PlanReader::read_replicas() {
  static constexpr std::array<std::string_view, 3> kReplicaNames{"count", "buckets", "shared"};
  json_.peek();
  document_.replicas_offset = json_.offset();
  const std::uint64_t seen = json_.read_fields(kReplicaNames, [&](std::size_t field) {
    if (field == 0) {
      const std::int64_t count = json_.read_non_negative("a number of replicas");
      if (count < 2 || count > static_cast<std::int64_t>(kMaxDevices))
        json_.fail("expected 2 to " + std::to_string(kMaxDevices) + " replicas");
      plan_.replicas.count = static_cast<std::uint32_t>(count);
      return;
    }
    if (field == 2) {
      const std::int64_t shared = json_.read_non_negative("a number of operators");
      if (shared == 0) json_.fail("expected operators that are shared");
      plan_.replicas.shared = static_cast<std::size_t>(shared);
      return;
    }
    json_.read_array([&] {
      document_.buckets.emplace_back();
      json_.read_array([&] {
        PlanDocument::Transfer tensor;
        read_tensor(tensor);
        document_.buckets.back().push_back({tensor.producer, tensor.port, tensor.offset});
      });
    });
  });
  json_.require_fields(kReplicaNames, seen, plan_.replicas.shared > 0 ? 1 : 2);
  if (plan_.replicas.shared > 0 && !document_.buckets.empty())
    json_.fail("replicas that share the step's operators reduce nothing");
  plan_.replicas.buckets.resize(document_.buckets.size());
}

void PlanReader::read_residency() {
  json_.peek();
  document_.residency_offset = json_.offset();
  json_.read_object(
      3,
      JsonField{"store",
                [&] {
                  plan_.residency.store = std::string(json_.read_string());
                  if (plan_.residency.store.empty()) json_.fail("expected the name of a device");
                }},
      JsonField{"away", [&] { json_.read_array([&] { read_away(); }); }},
      JsonField{"on_store", [&] {
                  json_.read_array([&] { document_.on_store.push_back(json_.read_string()); });
                }});
  if (document_.away.empty() && document_.on_store.empty())
    json_.fail("nothing is away: leave out \"residency\"");
}

void PlanReader::read_away() {
  PlanDocument::Away away;
  PlanDocument::Transfer tensor;
  json_.read_object(2, JsonField{"tensor", [&] { read_tensor(tensor); }},
                    JsonField{"fetches", [&] {
                                json_.read_array([&] { away.fetches.push_back(read_fetch()); });
                              }});
  away.producer = tensor.producer;
  away.port = tensor.port;
  away.offset = tensor.offset;
  document_.away.push_back(std::move(away));
}

PlanDocument::Fetch PlanReader::read_fetch() {
  PlanDocument::Fetch fetch;
  json_.read_object(
      1,
      JsonField{"readers",
                [&] { json_.read_array([&] { fetch.readers.push_back(json_.read_string()); }); }},
      JsonField{"after", [&] { fetch.after = json_.read_string(); }});
  return fetch;
}

void PlanReader::read_transfer() {
  PlanDocument::Transfer entry;
  Transfer& transfer = entry.transfer;
  json_.read_object(6, JsonField{"tensor", [&] { read_tensor(entry); }},
                    JsonField{"from", [&] { transfer.from = read_device_name(); }},
                    JsonField{"to", [&] { transfer.to = read_device_name(); }},
                    JsonField{"requested", [&] { transfer.requested = read_time(json_); }},
                    JsonField{"start", [&] { transfer.start = read_time(json_); }},
                    JsonField{"end", [&] { transfer.end = read_time(json_); }});
  if (transfer.from == transfer.to) json_.fail("a transfer from a device to itself");
  if (transfer.start < transfer.requested) json_.fail("starts before it is requested");
  if (transfer.end < transfer.start) json_.fail("ends before it starts");
  document_.transfers.push_back(entry);
}

// "operator" for its first output, ["operator", port] for another one.
void PlanReader::read_tensor(PlanDocument::Transfer& transfer) {
  if (json_.peek() == JsonReader::Type::kString) {
    transfer.producer = json_.read_string();
    transfer.offset = json_.offset();
    return;
  }
  json_.enter_array();
  if (!json_.next_item()) json_.fail("expected [operator, port]");
  transfer.producer = json_.read_string();
  transfer.offset = json_.offset();
  if (!json_.next_item()) json_.fail("expected [operator, port]");
  const std::int64_t port = json_.read_non_negative("an output port");
  if (port > 0xFFFFFFFF) json_.fail("the output port is too large");
  transfer.port = static_cast<std::uint32_t>(port);
  if (json_.next_item()) json_.fail("expected [operator, port]");
}

void PlanReader::check_document() {
  const Replicas& replicas = plan_.replicas;
  const std::size_t one = document_.num_operators + document_.recomputed.size();
  if (replicas.shared > one)
    json_.fail_at(document_.replicas_offset, "$.replicas", "shares more operators than there are");
  std::size_t runs =
      (one - replicas.shared) * std::size_t{replicas.count} + replicas.shared + replicas.ring_ops();
  if (plan_.micro_batches == 1)
    for (const PlanDocument::Away& away : document_.away) runs += away.fetches.size();
  // Only the graph tells which of the fetches are for streamed updates, each of which has two more.
  const std::size_t more = document_.operators.size() - std::min(runs, document_.operators.size());
  const bool may_stream = document_.has_residency() && more % 2 == 0;
  if (document_.operators.size() < runs || (more > 0 && !may_stream))
    json_.fail_at(document_.num_operators_offset, "$.graph.operators",
                  "the plan places " + std::to_string(document_.operators.size()) +
                      " operators, not " + std::to_string(runs) +
                      (document_.recomputed.empty() ? "" : ", second runs included") +
                      (plan_.replicas.any() ? ", those of all replicas included" : "") +
                      (document_.has_residency() ? ", fetches included" : ""));
  const auto check_name = [&](std::string_view name, std::size_t offset, const char* path) {
    if (!operator_names_.contains(name))
      json_.fail_at(offset, path, "the plan places no operator " + in_quotes(name));
  };
  if (plan_.micro_batches > 1) {
    if (has_transfers_)
      json_.fail_at(document_.runs_offset, "$.transfers",
                    "a step of micro-batches has no transfers: they follow from the runs");
  } else {
    for (const PlanDocument::Transfer& transfer : document_.transfers)
      check_name(transfer.producer, transfer.offset, "$.transfers");
    for (const PlanDocument::PeakOperator& peak : document_.peak_operators)
      check_name(peak.name, peak.offset, "$.devices");
  }
  // "gap" is for readers of the file; makespan and bounds define it.
  if (gap_.has_value() && gap_ != plan_.gap())
    json_.fail_at(gap_offset_, "$.gap", "is not makespan / first bound - 1");
}

}  // namespace

PlanDocument read_plan_document(JsonReader& json) { return PlanReader(json).read(); }

}  // namespace baechi
