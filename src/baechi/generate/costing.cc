// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/costing.h"

#include <algorithm>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {

std::vector<CostedKind> parse_costed_kinds(std::string_view text) {
  std::vector<CostedKind> kinds;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    std::string kind(item.substr(0, equals));
    const std::string_view preset =
        equals == std::string_view::npos ? item : item.substr(equals + 1);
    const std::string place = "devices '" + std::string(text) + "'";
    if (kind.empty() || preset.empty())
      throw InputError(place, "expected KIND=PRESET,... as in 'gpu=rtx2080,cpu=cpu'");
    const DevicePreset& found = device_preset(preset);
    if (equals == std::string_view::npos) kind = found.name;  // A100 is a100
    if (std::any_of(kinds.begin(), kinds.end(), [&](const auto& k) { return k.kind == kind; }))
      throw InputError(place, "kind '" + kind + "' occurs twice");
    kinds.push_back({std::move(kind), &found});
    begin = end + 1;
  }
  return kinds;
}

void check_growth(OpId added, const Costing& costing) {
  if (added.index() % 1024 == 0) throw_if_cancelled(costing.cancel);
  if (added.index() >= static_cast<std::size_t>(kMostGeneratedOperators))
    throw InputError("the graph would have more than " + std::to_string(kMostGeneratedOperators) +
                     " operators");
}

void set_times(OpGraphBuilder& builder, OpId op, const Costing& costing, Work work) {
  work.precision = costing.precision;
  for (const CostedKind& costed : costing.kinds)
    builder.set_time(op, costed.kind, roofline_time(*costed.preset, work));
}

void require_positive(std::string_view name, std::int64_t value) {
  if (value < 1)
    throw InputError(std::string(name) + " must be positive, not " + std::to_string(value));
}

}  // namespace baechi
