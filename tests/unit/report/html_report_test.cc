// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/html/html_report.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

OpGraph hostile_graph() {
  OpGraphBuilder builder("<b>{{data}}</title><script>alert(1)</script>");
  OpId before = testing::timed(
      builder, {.name = "</script><script>alert(2)</script>", .kind = "<i>"}, Time(5), kAnyKind);
  for (const char* name : {"<!--", "{{script}}", "\xE2\x80\xA8 \"quoted\\ \n", "größer", "grün"}) {
    const OpId op = testing::timed(builder, {.name = name}, Time(7), kAnyKind);
    builder.add_control_edge(before, op);
    before = op;
  }
  return std::move(builder).build();
}

std::string page_of(const OpGraph& graph) {
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(1000));
  const CostModel costs(graph, cluster);
  const PlacedGraph placed{Placement(graph.num_ops(), DeviceId(0)), std::nullopt};
  Plan plan = plan_of(costs, placed, "given", true);
  plan.notes.emplace_back("a note with </script> in it");
  const ReportPlan shown{&plan, "</script>"};
  return html_report(graph, {&shown, 1});
}

TEST_CASE("html report: no name can leave its place in the page") {
  const std::string page = page_of(hostile_graph());
  CHECK(count_of(page, "</script") == 2);  // of the data and of the page's own script
  CHECK(count_of(page, "<script") == 2);
  CHECK(count_of(page, "<title>") == 1);
  CHECK(count_of(page, "</title>") == 1);
  CHECK(page.find("<!--") == std::string::npos);
  CHECK(page.find("\\u003c/script>") != std::string::npos);
  CHECK(page.find("{{style}}") == std::string::npos);
}

TEST_CASE("html report: it names nothing outside itself") {
  const std::string page = page_of(hostile_graph());
  for (const std::string_view outside : {"http:", "https:", "src=", "@import", "url("})
    CHECK_MESSAGE(page.find(outside) == std::string::npos, outside);
  CHECK(page.find("default-src 'none'") != std::string::npos);
}

TEST_CASE("html report: equal plans give equal pages") {
  CHECK(page_of(hostile_graph()) == page_of(hostile_graph()));
}

}  // namespace
}  // namespace baechi
