// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/text/study_text.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "baechi/base/short_text.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/report/text/csv_field.h"
#include "baechi/report/text/text_table.h"

namespace baechi {
namespace {

using Layout = JsonWriter::Layout;

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

double ratio(Time a, Time b) {
  return static_cast<double>(a.count()) / static_cast<double>(b.count());
}

// The step time, and per sample where mini-batches differ.
std::string change_of(const ScenarioOutcome& base, const ScenarioOutcome& other) {
  if (!base.makespan.has_value() || !other.makespan.has_value() || *base.makespan == Time(0))
    return "";
  return change_text(ratio(*other.makespan, *base.makespan) - 1);
}

std::string remarks_text(const ScenarioOutcome& base, const ScenarioOutcome& other) {
  std::string text;
  if (other.method == kPresentPlan || other.method.starts_with(kPlanOf))
    text = "planning anew found nothing shorter";
  if (other.makespan.has_value() && base.batch_size != other.batch_size &&
      other.batch_size.has_value() && base.makespan.has_value() && *base.makespan > Time(0)) {
    const double per_sample = ratio(*other.makespan, *base.makespan) *
                              static_cast<double>(base.batch_size.value_or(1)) /
                              static_cast<double>(*other.batch_size);
    text += (text.empty() ? "" : "; ") + std::string("batch ") + std::to_string(*other.batch_size) +
            ": " + short_text(Time(other.makespan->count() / *other.batch_size)) + " a sample, " +
            change_text(per_sample - 1);
  }
  if (!other.fallbacks.empty())
    text += (text.empty() ? "" : "; ") + std::string("fell back: ") + joined(other.fallbacks);
  return text;
}

// As in plan.json: absent where a step is the mini-batch as a whole.
void write_micro_batches(JsonWriter& json, std::uint32_t count) {
  if (count > 1) json.field("micro_batches", count);
}

// "step 3 ms of 4 micro-batches".
std::string step_text(Time step, std::uint32_t micro_batches) {
  std::string text = "step " + short_text(step);
  if (micro_batches > 1) text += " of " + std::to_string(micro_batches) + " micro-batches";
  return text;
}

}  // namespace

void write_outcome(JsonWriter& json, const ScenarioOutcome& outcome) {
  json.field("devices", outcome.devices);
  if (outcome.batch_size.has_value()) json.field("batch_size", *outcome.batch_size);
  json.field("fits", outcome.makespan.has_value());
  if (outcome.makespan.has_value()) {
    write_micro_batches(json, outcome.micro_batches);
    json.field("makespan", outcome.makespan->count());
    if (outcome.gap.has_value()) json.field("gap", *outcome.gap);
    json.field("method", outcome.method);
    json.field("devices_used", outcome.devices_used);
    json.field("highest_peak", outcome.highest_peak.count());
    json.values("fallbacks", outcome.fallbacks);
  } else {
    json.field("proved", outcome.proved);
    json.field("reason", outcome.reason);
  }
}

std::string what_if_text(const std::vector<ScenarioOutcome>& outcomes) {
  const bool of_steps = std::ranges::any_of(
      outcomes, [](const ScenarioOutcome& outcome) { return outcome.micro_batches > 1; });
  std::vector<Column> columns{{"what if"}, {"devices", Align::kRight}, {"used", Align::kRight}};
  if (of_steps) columns.push_back({"micro-batches", Align::kRight});
  for (const char* right : {"step time", "change", "gap", "highest peak"})
    columns.push_back({right, Align::kRight});
  for (const char* left : {"by", "remarks"}) columns.push_back({left});
  TextTable table(std::move(columns));
  std::string reasons;
  for (const ScenarioOutcome& outcome : outcomes) {
    const bool fits = outcome.makespan.has_value();
    if (!fits) reasons += "\n" + outcome.name + ": " + outcome.reason;
    const bool is_base = &outcome == &outcomes.front();
    std::vector<std::string> row{outcome.name, std::to_string(outcome.devices),
                                 fits ? std::to_string(outcome.devices_used) : ""};
    if (of_steps) row.push_back(fits ? std::to_string(outcome.micro_batches) : "");
    for (std::string& cell :
         std::vector<std::string>{fits ? short_text(*outcome.makespan) : "does not fit",
                                  is_base ? "" : change_of(outcomes.front(), outcome),
                                  outcome.gap.has_value() ? change_text(*outcome.gap) : "",
                                  fits ? short_text(outcome.highest_peak) : "", outcome.method,
                                  remarks_text(outcomes.front(), outcome)})
      row.push_back(std::move(cell));
    table.add_row(std::move(row));
  }
  return table.text() + reasons + (reasons.empty() ? "" : "\n");
}

std::string what_if_json(const std::vector<ScenarioOutcome>& outcomes) {
  return json_document([&](JsonWriter& json) {
    json.objects("scenarios", outcomes, [&](const ScenarioOutcome& outcome) {
      json.field("name", outcome.name);
      write_outcome(json, outcome);
    });
  });
}

std::string device_worth_text(const DevicesWorth& worth) {
  if (!worth.step.has_value()) return "does not fit: " + worth.reason + "\n";
  TextTable table({{"device"},
                   {"step without it", Align::kRight},
                   {"it buys", Align::kRight},
                   {"it holds", Align::kRight},
                   {"of", Align::kRight}});
  std::string reasons;
  for (const DeviceWorth& device : worth.devices) {
    std::string without = "does not fit", buys = "the plan";
    if (device.step_without.has_value()) {
      const Time bought = *device.step_without - *worth.step;
      without = short_text(*device.step_without);
      buys = bought <= Time(0) ? "no time"
                               : short_text(bought) + " (" +
                                     share_text(bought.count(), device.step_without->count()) + ")";
    } else {
      reasons += "without " + device.device + ": " +
                 (device.reason.empty() ? "there is no other device" : device.reason) + "\n";
    }
    table.add_row(
        {device.device, without, buys, short_text(device.peak), short_text(device.capacity)});
  }
  const std::string all = step_text(*worth.step, worth.micro_batches) + " on " +
                          std::to_string(worth.devices.size()) +
                          (worth.devices.size() == 1 ? " device" : " devices");
  std::string enough = "no device can go without making the step longer\n";
  if (worth.enough.size() < worth.devices.size())
    enough = "enough for a step of " + short_text(worth.step_of_enough) + ": " +
             joined(worth.enough) + "\n";
  return all + "\n\n" + table.text() + "\n" + reasons + enough;
}

std::string device_worth_json(const DevicesWorth& worth) {
  return json_document([&](JsonWriter& json) {
    json.field("fits", worth.step.has_value());
    if (!worth.step.has_value()) {
      json.field("reason", worth.reason);
    } else {
      write_micro_batches(json, worth.micro_batches);
      json.field("makespan", worth.step->count());
      json.objects("devices", worth.devices, [&](const DeviceWorth& device) {
        json.field("name", device.device);
        if (device.step_without.has_value())
          json.field("makespan_without", device.step_without->count());
        else
          json.field("reason", device.reason);
        json.field("capacity", device.capacity.count());
        json.field("peak", device.peak.count());
      });
      json.values("enough", worth.enough);
      json.field("makespan_of_enough", worth.step_of_enough.count());
    }
  });
}

std::string sweep_csv(const std::vector<GridPoint>& points) {
  std::string text =
      "devices,memory,method,fits,micro_batches,step_ns,gap,highest_peak_bytes,devices_used,by,"
      "fallbacks,reason\n";
  for (const GridPoint& point : points) {
    const ScenarioOutcome& outcome = point.outcome;
    const bool fits = outcome.makespan.has_value();
    std::string gap;
    if (outcome.gap.has_value()) {
      JsonWriter writer(gap);
      writer.value(*outcome.gap);
    }
    text += std::to_string(point.devices) + "," + exact_text(point.memory) + "," +
            csv_field(point.method) + "," + (fits ? "1" : "0") + "," +
            (fits ? std::to_string(outcome.micro_batches) : "") + "," +
            (fits ? std::to_string(outcome.makespan->count()) : "") + "," + gap + "," +
            (fits ? std::to_string(outcome.highest_peak.count()) : "") + "," +
            (fits ? std::to_string(outcome.devices_used) : "") + "," + csv_field(outcome.method) +
            "," + csv_field(joined(outcome.fallbacks)) + "," + csv_field(outcome.reason) + "\n";
  }
  return text;
}

std::string sweep_json(const std::vector<GridPoint>& points) {
  return json_document([&](JsonWriter& json) {
    json.objects("points", points, [&](const GridPoint& point) {
      json.key("memory");
      json.number(exact_text(point.memory));
      json.field("requested_method", point.method);
      write_outcome(json, point.outcome);
    });
  });
}

std::string least_text(const Least& least) {
  std::string text;
  if (least.devices.has_value()) {
    const FewestDevices& found = *least.devices;
    text += "fewest devices: " + std::to_string(found.count) + ", " +
            step_text(found.plan.makespan(), found.plan.micro_batches) + " by " + found.plan.method;
    if (found.count > 1)
      text += found.impossible_up_to + 1 == found.count
                  ? "; proved: fewer never suffice"
                  : "; no plan was found for " + std::to_string(found.count - 1) +
                        ", which is not proved impossible";
    text += '\n';
  }
  if (least.memory.has_value()) {
    const LeastMemory& found = *least.memory;
    text +=
        "least memory per device: " + enough_text(found.capacity) + ", " +
        step_text(found.plan.makespan(), found.plan.micro_batches) + " by " + found.plan.method +
        (found.impossible_below >= found.capacity ? "; proved: no placement fits with less\n"
                                                  : "; proved: no placement fits with less than " +
                                                        short_text(found.impossible_below) + "\n");
  }
  return text;
}

std::string sensitivity_text(const Sensitivity& told) {
  std::string text = step_text(told.true_makespan, told.true_micro_batches) + " by " +
                     told.true_method + " when costs are known\n";
  std::size_t fitting = 0, repaired = 0;
  for (const SensitivitySample& sample : told.samples) {
    fitting += sample.makespan.has_value();
    repaired += sample.makespan.has_value() && sample.repaired;
  }
  text += "placed " + std::to_string(told.samples.size()) + " times with costs off by up to " +
          given_share(told.fraction) + ", replayed with the true costs: ";
  text +=
      fitting == told.samples.size() ? std::string("all fit") : std::to_string(fitting) + " fit";
  if (repaired > 0) text += ", " + std::to_string(repaired) + " of them after repair";
  text += "\n\n";
  if (!told.steps.has_value()) return text;
  TextTable table({{""}, {"step time", Align::kRight}, {"against known costs", Align::kRight}});
  const auto add = [&](const char* name, Time time) {
    table.add_row(
        {name, short_text(time),
         told.true_makespan > Time(0) ? change_text(ratio(time, told.true_makespan) - 1) : ""});
  };
  add("shortest", told.steps->min);
  add("lower quartile", told.steps->lower_quartile);
  add("median", told.steps->median);
  add("upper quartile", told.steps->upper_quartile);
  add("longest", told.steps->max);
  return text + table.text();
}

std::string sensitivity_csv(const Sensitivity& told) {
  std::string text = "seed,fits,step_ns,ratio,repaired,method\n";
  for (const SensitivitySample& sample : told.samples) {
    std::string step, relative;
    if (sample.makespan.has_value()) {
      step = std::to_string(sample.makespan->count());
      JsonWriter writer(relative);
      if (told.true_makespan > Time(0)) writer.value(ratio(*sample.makespan, told.true_makespan));
    }
    text += std::to_string(sample.seed) + "," + (sample.makespan.has_value() ? "1" : "0") + "," +
            step + "," + relative + "," + (sample.repaired ? "1" : "0") + "," +
            csv_field(sample.method) + "\n";
  }
  return text;
}

std::string sensitivity_json(const Sensitivity& told) {
  return json_document([&](JsonWriter& json) {
    json.field("off_by", told.fraction);
    write_micro_batches(json, told.true_micro_batches);
    json.field("makespan", told.true_makespan.count());
    json.field("method", told.true_method);
    if (told.steps.has_value()) {
      json.begin_object("steps", Layout::kInline);
      json.field("min", told.steps->min.count());
      json.field("lower_quartile", told.steps->lower_quartile.count());
      json.field("median", told.steps->median.count());
      json.field("upper_quartile", told.steps->upper_quartile.count());
      json.field("max", told.steps->max.count());
      json.end_object();
    }
    json.objects("samples", told.samples, [&](const SensitivitySample& sample) {
      json.field("seed", sample.seed);
      json.field("fits", sample.makespan.has_value());
      if (sample.makespan.has_value()) json.field("makespan", sample.makespan->count());
      json.field("repaired", sample.repaired);
      json.field("method", sample.method);
      write_micro_batches(json, sample.micro_batches);
    });
  });
}

std::string least_json(const Least& least) {
  return json_document([&](JsonWriter& json) {
    if (least.devices.has_value()) {
      const FewestDevices& found = *least.devices;
      json.begin_object("devices", Layout::kInline);
      json.field("count", found.count);
      json.field("impossible_up_to", found.impossible_up_to);
      write_micro_batches(json, found.plan.micro_batches);
      json.field("makespan", found.plan.makespan().count());
      json.field("method", found.plan.method);
      json.end_object();
    }
    if (least.memory.has_value()) {
      const LeastMemory& found = *least.memory;
      json.begin_object("memory", Layout::kInline);
      json.field("capacity", found.capacity.count());
      json.field("impossible_below", found.impossible_below.count());
      write_micro_batches(json, found.plan.micro_batches);
      json.field("makespan", found.plan.makespan().count());
      json.field("method", found.plan.method);
      json.end_object();
    }
  });
}

}  // namespace baechi
