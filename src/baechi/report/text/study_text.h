// SPDX-License-Identifier: Apache-2.0
// What-if, sweep, min and sensitivity as tables, CSV and JSON documents (docs/how_to/explain.md).
// Beyond the paper.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/study/device_worth.h"
#include "baechi/study/least.h"
#include "baechi/study/sensitivity.h"
#include "baechi/study/sweep.h"
#include "baechi/study/what_if.h"

namespace baechi {

// The first outcome is what the others are compared with.
// The fields of an outcome but its name.
void write_outcome(JsonWriter& json, const ScenarioOutcome& outcome);

std::string what_if_text(const std::vector<ScenarioOutcome>& outcomes);
std::string what_if_json(const std::vector<ScenarioOutcome>& outcomes);

std::string device_worth_text(const DevicesWorth& worth);
std::string device_worth_json(const DevicesWorth& worth);

// A line of column names, then one per point; text is quoted where it must be (RFC 4180).
std::string sweep_csv(const std::vector<GridPoint>& points);
std::string sweep_json(const std::vector<GridPoint>& points);

struct Least {  // absent: no plan was found, or it was not asked for
  std::optional<FewestDevices> devices;
  std::optional<LeastMemory> memory;
};
std::string least_text(const Least& least);
std::string least_json(const Least& least);

std::string sensitivity_text(const Sensitivity& told);
std::string sensitivity_csv(const Sensitivity& told);  // one line per sample
std::string sensitivity_json(const Sensitivity& told);

}  // namespace baechi
