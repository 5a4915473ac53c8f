// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/text/plan_text.h"

#include <algorithm>

#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/report/text/text_table.h"

namespace baechi {
namespace {

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string methods_table(const std::vector<MethodOutcome>& methods,
                          const std::vector<MethodTime>& times, std::optional<Time> bound,
                          std::optional<std::size_t> winner) {
  TextTable table({{""},
                   {"method"},
                   {"step time", Align::kRight},
                   {"gap", Align::kRight},
                   {"highest peak", Align::kRight},
                   {"devices", Align::kRight},
                   {"placed in", Align::kRight},
                   {"remarks"}});
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const MethodOutcome& method = methods[i];
    const std::string placed_in = i < times.size() ? short_text(Time(times[i].nanoseconds)) : "";
    const std::string mark = winner == i ? "*" : "";
    if (!method.makespan.has_value()) {
      table.add_row({mark, method.method, "does not fit", "", "", "", placed_in, method.reason});
      continue;
    }
    std::string gap;
    if (bound.has_value() && *bound > Time(0))
      gap = change_text(static_cast<double>(method.makespan->count()) /
                            static_cast<double>(bound->count()) -
                        1.0);
    Bytes peak;
    for (const Bytes bytes : method.peaks) peak = std::max(peak, bytes);
    table.add_row({mark, method.method, short_text(*method.makespan), gap, short_text(peak),
                   std::to_string(method.devices_used), placed_in,
                   method.fallbacks.empty() ? "" : "fell back: " + joined(method.fallbacks, ", ")});
  }
  return table.text();
}

// One row for each of the first devices; with a graph also what runs when most is held.
std::string devices_table(const Plan& plan, const OpGraph* graph, std::size_t most) {
  const bool has_run = plan.has_run_peaks();
  std::vector<Column> columns{{"device"},
                              {"operators", Align::kRight},
                              {"busy", Align::kRight},
                              {"peak", Align::kRight},
                              {"capacity", Align::kRight},
                              {"full", Align::kRight},
                              {"sent", Align::kRight},
                              {"received", Align::kRight}};
  if (has_run) columns.push_back({"as planned", Align::kRight});
  if (graph != nullptr) columns.push_back({"at the peak"});
  TextTable table(columns);
  IdVector<DeviceId, std::size_t> ops(plan.devices.size());
  for (const OpSlot& slot : plan.schedule.slots) ++ops[slot.device];
  for (const DeviceId id : plan.devices.keys()) {
    if (id.index() >= most) break;
    const PlanDevice& device = plan.devices[id];
    const Device& spec = plan.cluster.devices[id.index()];
    std::vector<std::string> row{spec.name,
                                 count_text(ops[id]),
                                 share_text(device.busy.count(), plan.makespan().count()),
                                 short_text(device.highest()),
                                 short_text(spec.capacity),
                                 share_text(device.highest().count(), spec.capacity.count()),
                                 short_text(device.sent),
                                 short_text(device.received)};
    if (has_run) row.push_back(short_text(device.peak));
    if (graph != nullptr)
      row.push_back(device.peak_op.has_value() ? std::string((*graph)[*device.peak_op].name) : "");
    table.add_row(row);
  }
  return table.text();
}

// "others: m-sct 180 ms, m-etf 183 ms; does not fit: single" in at most two lines of 100 columns.
std::string other_methods(const Plan& plan) {
  std::vector<const MethodOutcome*> fitting;
  std::vector<std::string> names, without;
  for (const MethodOutcome& method : plan.methods) {
    if (method.method == plan.method) continue;
    if (method.makespan.has_value())
      fitting.push_back(&method);
    else
      without.push_back(printable(method.method));
  }
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const auto* a, const auto* b) { return *a->makespan < *b->makespan; });
  for (const MethodOutcome* method : fitting)
    names.push_back(printable(method->method) + " " + short_text(*method->makespan));
  std::string text;
  if (!names.empty()) text += "others: " + joined(names, ", ") + "\n";
  if (!without.empty()) text += "does not fit: " + joined(without, ", ") + "\n";
  return text;
}

}  // namespace

std::string methods_text(const Plan& plan, const std::vector<MethodTime>& times) {
  std::optional<std::size_t> winner;
  for (std::size_t i = 0; i < plan.methods.size() && !winner.has_value(); ++i)
    if (plan.methods[i].method == plan.method && plan.methods[i].makespan == plan.makespan())
      winner = i;
  std::optional<Time> bound;
  if (!plan.bounds.empty()) bound = plan.bounds.front().value;
  return methods_table(plan.methods, times, bound, winner);
}

std::string methods_text(const std::vector<MethodOutcome>& methods,
                         const std::vector<MethodTime>& times) {
  return methods_table(methods, times, std::nullopt, std::nullopt);
}

std::string passes_text(const std::vector<OptimizerPass>& passes, const std::vector<Time>& times) {
  TextTable table({{"pass"},
                   {"operators", Align::kRight},
                   {"edges", Align::kRight},
                   {"groups", Align::kRight},
                   {"took", Align::kRight},
                   {"what it did"}});
  const auto change = [](std::size_t before, std::size_t after) {
    return before == after ? count_text(after) : count_text(before) + " -> " + count_text(after);
  };
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const OptimizerPass& pass = passes[i];
    table.add_row({pass.pass, change(pass.before.ops, pass.after.ops),
                   change(pass.before.edges, pass.after.edges),
                   change(pass.before.groups, pass.after.groups),
                   i < times.size() ? short_text(times[i]) : "", pass.note});
  }
  return table.text();
}

std::string devices_text(const Plan& plan, const OpGraph& graph) {
  return devices_table(plan, &graph, plan.devices.size());
}

std::string brief_text(const Plan& plan) {
  constexpr std::size_t kRows = 5;
  std::string text = headline(plan) + "\n" + other_methods(plan) + "\n";
  text += devices_table(plan, nullptr, kRows);
  if (plan.devices.size() > kRows)
    text += "... and " + counted(plan.devices.size() - kRows, "device") + " more: see --verbose\n";
  return text;
}

std::string order_words(const Plan& plan) {
  if (plan.order == ExecutionOrder::kProgram) return " in program order";
  return plan.order == ExecutionOrder::kNone ? " without an order" : "";
}

std::string fewer_devices_words(const Plan& plan) {
  std::vector<bool> used(plan.cluster.devices.size(), false);
  for (const OpSlot& slot : plan.schedule.slots) used[slot.device.index()] = true;
  constexpr std::ptrdiff_t kNamed = 4;
  const std::ptrdiff_t unnamed = std::ranges::count(used, false) - kNamed;
  std::string idle;
  for (std::size_t i = 0, named = 0; i < used.size() && named < kNamed; ++i)
    if (!used[i]) idle += (named++ == 0 ? "" : ", ") + in_quotes(plan.cluster.devices[i].name);
  if (unnamed > 0) idle += " and " + counted(static_cast<std::size_t>(unnamed), "device") + " more";
  if (!idle.empty()) return "a step is as fast without " + idle + ": no operator is placed there";
  const Time most = plan.makespan() + Time(plan.makespan().count() / 100);
  const MethodOutcome* fewest = nullptr;
  for (const MethodOutcome& row : plan.methods)
    if (row.makespan.has_value() && *row.makespan <= most && row.devices_used < used.size() &&
        (fewest == nullptr || row.devices_used < fewest->devices_used))
      fewest = &row;
  if (fewest == nullptr) return {};
  return "a step takes " + short_text(*fewest->makespan) + " on " +
         std::to_string(fewest->devices_used) + " of the " + std::to_string(used.size()) +
         " devices (method " + printable(fewest->method) +
         "): what-if --devices tells what each of them buys";
}

OrderlessStep orderless_step(const OpGraph& graph, const Plan& plan) {
  if (plan.order == ExecutionOrder::kNone)
    return {plan.makespan(), "a step takes " + short_text(plan.makespan()) +
                                 " without an order, which the plan was made for"};
  const Cluster cluster(plan.cluster);
  const CostModel costs(graph, cluster);
  const Plan without = replayed(plan, costs, ExecutionOrder::kNone);
  std::string words =
      "a step takes " + short_text(plan.makespan()) +
      (plan.order == ExecutionOrder::kPlanned ? " in the order of the plan" : order_words(plan)) +
      ", " + short_text(without.makespan()) +
      " without one, as a program runs it that takes the placement alone";
  for (const DeviceId device : cluster.devices())
    if (without.devices[device].peak > cluster[device].capacity) {
      words += ", and '" + cluster[device].name + "' runs out of memory";
      break;
    }
  return {without.makespan(), words + ": place --order none plans for that"};
}

std::string with_replicas(const Plan& plan) {
  return plan.replicas.apart() ? " with " + std::to_string(plan.replicas.count) + " replicas" : "";
}

std::string headline(const Plan& plan) {
  std::string text =
      "step " + short_text(plan.makespan()) + order_words(plan) + " by " + printable(plan.method);
  if (!plan.bounds.empty() && plan.gap().has_value())
    text += ", " + at_most_above(*plan.gap(), "the best possible") + with_replicas(plan) + " (" +
            printable(plan.bounds.front().name) + " bound " +
            short_text(plan.bounds.front().value) + ")";
  return text;
}

}  // namespace baechi
