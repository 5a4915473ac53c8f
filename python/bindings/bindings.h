// SPDX-License-Identifier: Apache-2.0
// The parts of the extension module, and the handles that its objects are made of.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/cluster/cluster.h"
#include "baechi/cost/profile.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/unroll.h"
#include "baechi/io/profile/model_costs.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/request.h"
#include "baechi/schedule/plan.h"

namespace baechi::python {

// Graphs are immutable, so Python objects share them.
struct GraphHandle {
  std::shared_ptr<const OpGraph> graph;
};

struct OperatorHandle {
  std::shared_ptr<const OpGraph> graph;
  OpId op;
};

struct ProfileHandle {
  std::shared_ptr<const Profile> profile;
};

struct ClusterHandle {
  std::shared_ptr<const Cluster> cluster;
};

// A plan names operators by id: it keeps the graph that the ids belong to.
struct PlanHandle {
  std::shared_ptr<const OpGraph> graph;  // of a step of micro-batches the unrolled one, or the one
                                         // with second runs
  Plan plan;
  std::shared_ptr<const Unrolled> step = {};        // of more than one micro-batch
  std::shared_ptr<const OpGraph> micro_batch = {};  // the graph as given, where it is another one

  StepGraph step_graph() const { return step != nullptr ? StepGraph(*step) : StepGraph(*graph); }
  GraphHandle graph_of_one() const { return {micro_batch != nullptr ? micro_batch : graph}; }
};
// A plan of a step of micro-batches.
PlanHandle plan_handle(Unrolled step, Plan plan, OpGraph micro_batch);

// "No plan fits" as a value; the package raises it.
struct UnplaceableHandle {
  std::shared_ptr<const OpGraph> graph;
  Unplaceable answer;
};

// What keyword arguments ask the planner for.
struct Asked {
  StepRequest request;
  std::optional<std::map<std::string, std::string>> expert;  // devices by operators, by names
};

// Throws InputError for options that `taker` does not take or that have no such value. `who` is the
// function in messages, `others` are further arguments that it takes.
Asked asked_of(const nanobind::dict& options, Taker taker, const std::string& who,
               StepRequest request = {}, std::vector<std::string> others = {});
// The same for what takes no expert; also throws InputError for options without effect.
StepRequest request_of(const nanobind::dict& options, Taker taker, const std::string& who,
                       StepRequest request = {});

// The operator that a Python caller names or numbers. Throws KeyError or IndexError.
OpId operator_id(const OpGraph& graph, const nanobind::object& key);

// The devices that a Python caller names. Throws InputError when an operator or a device is
// unknown, or an operator is missing.
Placement placement_by_name(const OpGraph& graph, const Cluster& cluster,
                            const std::map<std::string, std::string>& device_of);

// "planned", "program" or "none". Throws InputError for anything else.
ExecutionOrder order_by_name(const std::string& name);

// Presets, a profile's path, a Profile, or a sequence of these. Throws InputError or TypeError.
ModelCosts model_costs_of(const nanobind::object& costs, std::optional<std::int64_t> batch);
// Issues Python warnings.
void warn_of_profiles(const OpGraph& graph, const ModelCosts& costs);

// 'dataflow' or 'retain'. Throws InputError for another name.
MemoryMode memory_mode_of(std::string_view name);
const char* memory_mode_name(MemoryMode mode);

// Whole numbers as they stand, which may be out of range; the type of everything else.
inline std::string words_of(nanobind::handle value) {
  if (PyLong_Check(value.ptr())) return nanobind::repr(value).c_str();
  return std::string("a value of type ") + nanobind::str(value.type().attr("__name__")).c_str();
}

// The entries of a mapping in its own order, which is the order of a graph's device kinds. Throws
// TypeError for a value that is not of type T as it stands.
template <class T>
std::vector<std::pair<std::string, T>> items_of(const nanobind::mapping& mapping,
                                                const char* what) {
  std::vector<std::pair<std::string, T>> items;
  for (const nanobind::handle item : mapping.items()) {
    std::pair<std::string, T> entry;
    if (!nanobind::try_cast(item[0], entry.first, false) ||
        !nanobind::try_cast(item[1], entry.second, false))
      throw nanobind::type_error((std::string(what) + ", and " + nanobind::repr(item[0]).c_str() +
                                  " has " + words_of(item[1]))
                                     .c_str());
    items.push_back(std::move(entry));
  }
  return items;
}

// For classes with a constructor: calling the class looks __init__ up, as in classes of Python, so
// that the package can put a function before it (baechi/arguments.py).
inline constexpr int kVectorcallSlot = 82;  // Py_tp_vectorcall, a name from 3.14 on
inline constexpr PyType_Slot kLooksUpInit[] = {{kVectorcallSlot, nullptr}, {0, nullptr}};

void bind_errors(nanobind::module_& m);
void bind_graph(nanobind::module_& m);
void bind_graph_builder(nanobind::module_& m);
void bind_profile(nanobind::module_& m);
void bind_graph_arrays(nanobind::module_& m);
void bind_cluster(nanobind::module_& m);
void bind_optimize(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_options(nanobind::module_& m);
void bind_place(nanobind::module_& m);
void bind_simulator(nanobind::module_& m);
void bind_generate(nanobind::module_& m);
void bind_study(nanobind::module_& m);
void bind_report(nanobind::module_& m);

}  // namespace baechi::python
