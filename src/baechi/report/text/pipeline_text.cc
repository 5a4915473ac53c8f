// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/text/pipeline_text.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "baechi/base/short_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/report/text/study_text.h"
#include "baechi/report/text/text_table.h"

namespace baechi {
namespace {

std::string share_of_step(Time part, Time whole) {
  return part == Time(0) ? "" : share_text(part.count(), whole.count());
}

std::string name_of(const Plan& plan, DeviceId device) {
  return printable(plan.cluster.devices[device.index()].name);
}

std::string change_words(const ScenarioOutcome& outcome, Time now) {
  if (!outcome.makespan.has_value()) return "";
  if (*outcome.makespan == now) return "no change";
  const double ratio =
      static_cast<double>(outcome.makespan->count()) / static_cast<double>(now.count());
  return change_text(ratio - 1);
}

std::string limit_words(const Plan& plan, const PipelineLimit& limit) {
  const std::string busy =
      short_text(limit.busy) + " of the step (" + share_of_step(limit.busy, plan.makespan()) +
      "), " + short_text(Time(limit.busy.count() / plan.micro_batches)) + " a micro-batch";
  if (limit.to.has_value())
    return "the link from " + name_of(plan, limit.device) + " to " + name_of(plan, *limit.to) +
           " carries data for " + busy;
  return "the stage on " + name_of(plan, limit.device) + " computes for " + busy;
}

std::string next_text(const Plan& plan, const PipelineExplanation& told) {
  if (told.next.empty())
    return "what more micro-batches or memory would bring: `baechi what-if --micro-batches`\n";
  TextTable table({{"planned again with"},
                   {"step time", Align::kRight},
                   {"change", Align::kRight},
                   {"highest peak", Align::kRight}});
  std::string reasons;
  for (const ScenarioOutcome& outcome : told.next) {
    const bool fits = outcome.makespan.has_value();
    table.add_row({outcome.name, fits ? short_text(*outcome.makespan) : "does not fit",
                   change_words(outcome, plan.makespan()),
                   fits ? short_text(outcome.highest_peak) : ""});
    if (!fits) reasons += outcome.name + ": " + outcome.reason + "\n";
  }
  if (told.scaled)
    reasons +=
        "costs of other micro-batches are scaled from one size, so many small ones look better "
        "than they are: --sizes gives a second\n";
  return table.text() + reasons;
}

}  // namespace

std::string bubbles_text(const Plan& plan, const IdVector<DeviceId, DeviceBubbles>& bubbles) {
  std::vector<Column> columns{{"device"}, {"idle", Align::kRight}, {"share", Align::kRight}};
  for (const std::string_view cause : kBubbleCauses)
    columns.push_back({std::string(cause), Align::kRight});
  TextTable table(std::move(columns));
  for (const DeviceId device : bubbles.keys()) {
    const DeviceBubbles& told = bubbles[device];
    std::vector<std::string> row{name_of(plan, device), short_text(told.idle()),
                                 share_of_step(told.idle(), plan.makespan())};
    for (const Time part : told.total) row.push_back(share_of_step(part, plan.makespan()));
    table.add_row(std::move(row));
  }
  return table.text();
}

void write_bubbles(JsonWriter& json, const DeviceBubbles& bubbles) {
  json.begin_object("idle", JsonWriter::Layout::kInline);
  for (std::size_t cause = 0; cause < kBubbleCauses.size(); ++cause)
    json.field(kBubbleCauses[cause], bubbles.total[cause].count());
  json.end_object();
}

std::string pipeline_text(const Plan& plan, const PipelineExplanation& told) {
  return "pipeline of " + std::to_string(plan.micro_batches) +
         " micro-batches: " + limit_words(plan, told.limit) + "\n\n" +
         bubbles_text(plan, told.bubbles) + "\n" + next_text(plan, told);
}

void write_pipeline(JsonWriter& json, const Plan& plan, const PipelineExplanation& told) {
  const auto name = [&](DeviceId device) -> const std::string& {
    return plan.cluster.devices[device.index()].name;
  };
  json.begin_object("pipeline");
  json.field("micro_batches", plan.micro_batches);
  json.begin_object("limit", JsonWriter::Layout::kInline);
  json.field(told.limit.to.has_value() ? "from" : "device", name(told.limit.device));
  if (told.limit.to.has_value()) json.field("to", name(*told.limit.to));
  json.field("busy", told.limit.busy.count());
  json.end_object();
  json.objects("next", told.next, [&](const ScenarioOutcome& outcome) {
    json.field("name", outcome.name);
    write_outcome(json, outcome);
  });
  json.end_object();
}

}  // namespace baechi
