// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/html/html_report.h"

#include <string_view>

#include "baechi/base/assert.h"
#include "baechi/report/html/html_parts.h"
#include "baechi/report/html/report_data.h"

namespace baechi {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '{')  // so that no name looks like a place to fill
      result += "&#123;";
    else
      result += c;
  }
  return result;
}

// JSON that nothing in it can end a script element: "<" only occurs in its strings.
std::string for_script(std::string_view json) {
  std::string result;
  result.reserve(json.size() + json.size() / 64);
  for (const char c : json) {
    if (c == '<')
      result += "\\u003c";
    else
      result += c;
  }
  return result;
}

// Puts `content` where the page says {{name}}.
void fill(std::string& page, std::string_view name, std::string_view content) {
  const std::string mark = "{{" + std::string(name) + "}}";
  const std::size_t at = page.find(mark);
  BAECHI_ASSERT(at != std::string::npos, "the page has a place for every part");
  page.replace(at, mark.size(), content);
}

}  // namespace

std::string html_report(const StepGraph& step, std::span<const ReportPlan> plans) {
  const OpGraph& graph = step.graph();
  BAECHI_ASSERT(plans.size() == 1 || plans.size() == 2, "a report shows one plan or two");
  std::string script;
  for (const std::string_view part : html::kScripts) script += part;
  std::string page(html::kPage);
  // The data comes last: what it contains is never looked at again.
  fill(page, "title", escaped(graph.name().empty() ? "plan" : graph.name()));
  fill(page, "style", html::kStyle);
  fill(page, "script", script);
  fill(page, "data", for_script(report_data(step, plans)));
  return page;
}

}  // namespace baechi
