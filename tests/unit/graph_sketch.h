// SPDX-License-Identifier: Apache-2.0
// Small graphs and placements written down by name, for instances that are worked out by hand.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/schedule/schedule.h"

namespace baechi::testing {

// Operators get ids in the order of op(), so hand-worked ties are as written. All run on kind
// "gpu".
//   GraphSketch().ops({{"a", 3}, {"b", 2}}).tensor("a", 4, {"b"}).build()
class GraphSketch {
 public:
  using Names = std::initializer_list<const char*>;
  struct Op {
    const char* name;
    std::int64_t time, temporary = 0, permanent = 0;
  };
  struct Tensor {
    const char* producer;
    std::int64_t bytes;
    Names consumers;
  };
  struct Control {
    const char *from, *to;
  };

  GraphSketch& op(std::string_view name, std::int64_t time, std::int64_t temporary = 0,
                  std::int64_t permanent = 0);
  // The next output of `producer`.
  GraphSketch& tensor(std::string_view producer, std::int64_t bytes, Names consumers);
  GraphSketch& control(std::string_view from, std::string_view to);
  GraphSketch& backward(std::string_view op);
  // One after the other.
  GraphSketch& ops(std::initializer_list<Op> all);
  GraphSketch& tensors(std::initializer_list<Tensor> all);
  GraphSketch& controls(std::initializer_list<Control> all);
  GraphSketch& backwards(Names all);
  GraphSketch& memory_mode(MemoryMode mode);
  OpGraph build();

 private:
  OpId at(std::string_view name) const;
  OpGraphBuilder builder_{"sketch"};
};

OpId op_named(const OpGraph& graph, std::string_view name);

// One list per device: the placement, with the lists as its order or without an order.
using DeviceLists = std::vector<std::vector<std::string_view>>;
PlacedGraph in_order(const OpGraph& graph, const DeviceLists& lists);
PlacedGraph in_any_order(const OpGraph& graph, const DeviceLists& lists);

}  // namespace baechi::testing
