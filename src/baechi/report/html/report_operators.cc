// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/html/report_operators.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

namespace baechi {
namespace {

// Only of ASCII: a page counts a name's length in other units than bytes.
std::size_t shared_length(std::string_view a, std::string_view b) {
  std::size_t length = 0;
  while (length < a.size() && length < b.size() && a[length] == b[length] &&
         static_cast<unsigned char>(a[length]) < 0x80)
    ++length;
  return length;
}

}  // namespace

void ReportOperators::number() {
  for (const OpId op : graph_.ops()) {
    if (!rows_[op].has_value()) continue;
    rows_[op] = shown_.size();
    shown_.push_back(op);
  }
}

void ReportOperators::write_names(JsonWriter& json) const {
  json.begin_array("names");
  std::string_view before;
  for (const OpId op : shown_) {
    const std::string_view name = graph_[op].name;
    const std::size_t shared = shared_length(before, name);
    json.value(shared);
    json.value(name.substr(shared));
    before = name;
  }
  json.end_array();
}

void ReportOperators::write(JsonWriter& json) const {
  write_names(json);
  std::map<std::string_view, std::size_t> number_of_kind;
  for (const OpId op : shown_) number_of_kind.emplace(graph_[op].kind, number_of_kind.size());
  std::vector<std::string_view> kinds(number_of_kind.size());
  for (const auto& [kind, number] : number_of_kind) kinds[number] = kind;
  write_column(json, "kinds", kinds, [](std::string_view kind) { return kind; });
  json.begin_object("operators");
  write_column(json, "kind", shown_, [&](OpId op) { return number_of_kind.at(graph_[op].kind); });
  write_column(json, "backward", shown_, [&](OpId op) { return graph_[op].backward ? 1 : 0; });
  write_column(json, "permanent", shown_, [&](OpId op) { return graph_[op].permanent.count(); });
  write_column(json, "temporary", shown_, [&](OpId op) { return graph_[op].temporary.count(); });
  write_column(json, "outputs", shown_, [&](OpId op) { return graph_.output_bytes(op).count(); });
  if (step_.micro_batches() > 1)  // -1: runs once per step
    write_column(json, "micro_batch", shown_, [&](OpId op) {
      const std::optional<std::uint32_t> own = step_.micro_batch(op);
      return own.has_value() ? static_cast<std::int64_t>(*own) : -1;
    });
  json.end_object();
}

}  // namespace baechi
