// SPDX-License-Identifier: Apache-2.0
// What was measured of a model's operators, and a graph with these costs (Paper 4.1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/recosted.h"

namespace baechi {

struct OperatorProfile {
  std::string name;
  // No kind twice; kAnyKind for all kinds that are not listed. What was not measured is absent.
  std::vector<KindTime> times;
  std::optional<Bytes> permanent, temporary;
  // By port. `transferred`: what another device has to be sent, shape times element size.
  // `allocated`: what was taken from the allocator for it; nothing for an output that aliases an
  // input or a variable, more than `transferred` where the allocator rounds up.
  std::vector<std::optional<Bytes>> transferred, allocated;

  friend bool operator==(const OperatorProfile&, const OperatorProfile&) = default;
};

struct Profile {
  std::string source;                      // for people: by what and how it was measured
  std::optional<std::int64_t> batch_size;  // it was measured with
  std::vector<OperatorProfile> operators;  // no name twice

  friend bool operator==(const Profile&, const Profile&) = default;
};

// How large the tensor of output `port` is in a graph: the larger of its two sizes, or nothing when
// neither is known. An alias counts in full: the copy that another device receives is real, and the
// memory that it shares may otherwise be freed with the last use of the tensor it shares it with.
// So a predicted peak is never lower than what was measured allows.
std::optional<Bytes> measured_output(const OperatorProfile& measured, std::size_t port);

// The same operators and tensors with the costs of the profile; what it lacks stays. Throws
// InputError when it is of another graph: most of its operators are unknown, one of them has more
// outputs, or the batch sizes differ.
OpGraph with_profile(const OpGraph& graph, const Profile& profile);

// The device kinds that it has times for, kAnyKind among them, in the order of their first use.
std::vector<std::string> measured_kinds(const Profile& profile);

// What people should know: operators that only one of the two has, one sentence each.
std::vector<std::string> coverage_notes(const OpGraph& graph, const Profile& profile);

}  // namespace baechi
