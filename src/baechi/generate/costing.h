// SPDX-License-Identifier: Apache-2.0
// On which devices a generated graph can run, and with how many bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/cost/device_presets.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi {

struct CostedKind {
  std::string kind;            // the device kind that the graph gets times for
  const DevicePreset* preset;  // the device they are estimated for
};

// Reads "gpu=rtx2080,cpu=cpu"; "a100" alone is short for "a100=a100". Throws InputError for an
// unknown preset, a kind given twice or an empty one.
std::vector<CostedKind> parse_costed_kinds(std::string_view text);

// The largest graph that is generated: a few times what can be placed, and what memory can hold.
inline constexpr std::int64_t kMostGeneratedOperators = 20'000'000;

struct Costing {
  std::vector<CostedKind> kinds = parse_costed_kinds("gpu=rtx2080");
  Precision precision = Precision::kFp32;
  const CancelFlag* cancel = nullptr;  // polled while operators are added
};

// For every operator as it is added: throws Cancelled, or InputError when the graph becomes larger
// than any that is generated.
void check_growth(OpId added, const Costing& costing);

// Sets the roofline time of `op` for every kind.
void set_times(OpGraphBuilder& builder, OpId op, const Costing& costing, Work work);

// Throws InputError "NAME must be positive, not VALUE" unless it is.
void require_positive(std::string_view name, std::int64_t value);

}  // namespace baechi
