// SPDX-License-Identifier: Apache-2.0
// Clusters of known devices by name: "4xrtx3090", "paper". Beyond the paper.
#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/cost/device_presets.h"

namespace baechi {
namespace {

constexpr std::int64_t kLargestCount = 1024;

struct Term {  // "4xrtx3090"
  std::int64_t count = 0;
  const DevicePreset* preset = nullptr;
};

// Nothing when the text has another form or the device is unknown.
std::optional<Term> parse_term(std::string_view text) {
  Term term;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, term.count);
  if (error == std::errc::invalid_argument || after == end || *after != 'x') return std::nullopt;
  term.preset = find_device_preset(std::string_view(after + 1, end));
  if (term.preset == nullptr) return std::nullopt;
  if (error != std::errc() || term.count < 1 || term.count > kLargestCount)
    throw InputError("cluster '" + std::string(text) + "'",
                     "the number of devices must be 1 to " + std::to_string(kLargestCount));
  return term;
}

LinkRule kinds_rule(std::string_view from, std::string_view to, const LinkPreset& link) {
  return {.scope = LinkScope::kKinds,
          .from = std::string(from),
          .to = std::string(to),
          .latency = link.latency,
          .bandwidth = link.bandwidth,
          .channels = {}};
}

LinkPreset slower(const LinkPreset& a, const LinkPreset& b) {
  return {std::max(a.latency, b.latency), std::min(a.bandwidth, b.bandwidth)};
}

ClusterSpec assemble(std::string_view name, const std::vector<Term>& terms) {
  ClusterSpec spec;
  spec.name = std::string(name);
  std::vector<const DevicePreset*> seen;
  std::vector<std::int64_t> counts;
  for (const Term& term : terms) {
    const auto at = std::find(seen.begin(), seen.end(), term.preset);
    const auto slot = static_cast<std::size_t>(at - seen.begin());
    if (at == seen.end()) {
      seen.push_back(term.preset);
      counts.push_back(0);
    }
    const std::string kind(term.preset->name);
    for (std::int64_t i = 0; i < term.count; ++i)
      spec.devices.push_back({.name = kind + ":" + std::to_string(counts[slot]++),
                              .kind = kind,
                              .capacity = term.preset->capacity,
                              .host = "host"});
  }
  spec.links = preset_links(seen);
  return spec;
}

// Kind "gpu", so that graphs generated without naming a device run on it.
ClusterSpec paper_cluster() {
  const DevicePreset& rtx2080 = device_preset("rtx2080");
  ClusterSpec spec = uniform_cluster({.count = 4,
                                      .capacity = rtx2080.capacity,
                                      .latency = rtx2080.host_link.latency,
                                      .bandwidth = rtx2080.host_link.bandwidth,
                                      .communication = CommunicationMode::kSequential});
  spec.name = "paper";
  return spec;
}

}  // namespace

std::vector<LinkRule> preset_links(const std::vector<const DevicePreset*>& presets) {
  std::vector<LinkRule> rules;
  for (std::size_t i = 0; i < presets.size(); ++i) {
    const DevicePreset& preset = *presets[i];
    rules.push_back(
        kinds_rule(preset.name, preset.name, preset.peer_link.value_or(preset.host_link)));
    for (std::size_t j = 0; j < i; ++j)
      rules.push_back(kinds_rule(presets[j]->name, preset.name,
                                 slower(presets[j]->host_link, preset.host_link)));
  }
  return rules;
}

std::optional<ClusterSpec> preset_cluster(std::string_view name) {
  if (name == "paper") return paper_cluster();
  std::vector<Term> terms;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('+', begin), name.size());
    const std::optional<Term> term = parse_term(name.substr(begin, end - begin));
    if (!term.has_value()) return std::nullopt;
    terms.push_back(*term);
    begin = end + 1;
  }
  return assemble(name, terms);
}

}  // namespace baechi
