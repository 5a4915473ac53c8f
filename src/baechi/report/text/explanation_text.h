// SPDX-License-Identifier: Apache-2.0
// Explanations as text for a terminal, and as JSON documents (docs/how_to/explain.md). Beyond the
// paper.
#pragma once

#include <string>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/report/text/pipeline_text.h"
#include "baechi/schedule/plan.h"
#include "baechi/study/explain.h"

namespace baechi {

// The plan that is explained, with what its ids mean.
struct Explained {
  const OpGraph& graph;
  const Cluster& cluster;
  const Plan& plan;
  const PipelineExplanation* pipeline = nullptr;  // of a step of several micro-batches
};

std::string explanation_text(const Explained& of, const PlanExplanation& told);
std::string explanation_text(const Explained& of, const OperatorExplanation& told);

std::string explanation_json(const Explained& of, const PlanExplanation& told);
std::string explanation_json(const Explained& of, const OperatorExplanation& told);

const char* bottleneck_name(Bottleneck bottleneck);  // "device load", "communication", ...

}  // namespace baechi
