// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/cluster/read_cluster.h"

#include <algorithm>
#include <array>
#include <map>
#include <system_error>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/near_name.h"
#include "baechi/cost/device_presets.h"
#include "baechi/io/cluster/cluster_json.h"
#include "baechi/io/graph/dnn_partitioning.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/io/text/text_file.h"

namespace baechi {
namespace {

struct LinkName {
  std::string_view name;
  LinkPreset link;
};
// NVLink: an A100's, three quarters of 300 GB/s. Networks: what TCP leaves.
constexpr std::array<LinkName, 10> kLinkNames{
    {{"pcie3", kPcie3},
     {"pcie4", kPcie4},
     {"pcie5", kPcie5},
     {"nvlink", {microseconds(15), Bandwidth(225'000'000'000)}},
     {"host", {microseconds(5), Bandwidth(20'000'000'000)}},
     {"1gbit", {microseconds(150), Bandwidth(117'000'000)}},
     {"10gbit", {microseconds(150), Bandwidth(1'170'000'000)}},
     {"25gbit", {microseconds(50), Bandwidth(2'900'000'000)}},
     {"40gbit", {microseconds(50), Bandwidth(4'700'000'000)}},
     {"100gbit", {microseconds(50), Bandwidth(11'700'000'000)}}}};
// Of a host without an amount: more than plans have needed; what one needs is in its peaks.
constexpr Bytes kAmpleHost = gibibytes(1024);
constexpr std::string_view kHostKind = "host";

LinkRule rule_of(const LinkPreset& link) {
  LinkRule rule;
  rule.latency = link.latency;
  rule.bandwidth = link.bandwidth;
  return rule;
}

// A host that keeps tensors has a link of its own to every other device, both ways at once.
void link_to_host(ClusterSpec& spec) {
  const auto is_host = [](const Device& device) { return device.kind == kHostKind; };
  if (std::ranges::none_of(spec.devices, is_host)) return;
  spec.communication = CommunicationMode::kDuplex;
  for (const Device& device : spec.devices) {
    if (is_host(device)) continue;
    const std::optional<LinkPreset> link = store_link_of(device.kind);
    if (!link.has_value())
      throw InputError("cluster",
                       "the memory of '" + device.name + "' is the host's: leave the host out");
    LinkRule rule = rule_of(*link);
    rule.scope = LinkScope::kKinds;
    rule.from = device.kind;
    rule.to = kHostKind;
    const bool there = std::ranges::any_of(spec.links, [&](const LinkRule& other) {
      return other.scope == LinkScope::kKinds && other.from == rule.from && other.to == rule.to;
    });
    if (!there) spec.links.push_back(std::move(rule));
  }
}

void add_host(ClusterSpec& spec, const std::string& memory) {
  for (const Device& device : spec.devices)
    if (device.kind == kHostKind)
      throw InputError("host memory " + memory, "the cluster has the host '" + device.name +
                                                    "': say how much memory there, or here");
  Device host{std::string(kHostKind) + ":0", std::string(kHostKind), {}, "localhost", kFullSpeed};
  if (!spec.devices.empty()) host.host = spec.devices.front().host;
  try {
    host.capacity = parse_bytes(memory);
  } catch (const InputError& error) {
    throw InputError("host memory " + memory, error.what());
  }
  spec.devices.push_back(std::move(host));
  link_to_host(spec);
}

[[noreturn]] void throw_bad_part(std::string_view part, const std::string& reason) {
  throw InputError("cluster '" + printable(part, 60) + "'", reason);
}

bool is_kind_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.' || c == '/';
  });
}

std::string_view trim(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// The text before the first `separator`, which is removed from `rest`.
std::string_view take_until(std::string_view& rest, char separator) {
  const std::size_t at = std::min(rest.find(separator), rest.size());
  const std::string_view taken = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return taken;
}

std::size_t read_count(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (const char c : text) {
    if (c < '0' || c > '9')
      throw_bad_part(part, "expected COUNTx[KIND:]MEMORY[@SPEED], such as 4x8GiB");
    if (count <= kMaxDevices) count = count * 10 + static_cast<std::size_t>(c - '0');
  }
  if (text.empty()) throw_bad_part(part, "expected COUNTx[KIND:]MEMORY[@SPEED], such as 4x8GiB");
  if (count == 0) throw_bad_part(part, "the number of devices must be positive");
  if (count > kMaxDevices)
    throw_bad_part(part, "more than " + std::to_string(kMaxDevices) + " devices");
  return count;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

struct DeviceGroup {  // one part of a one-liner
  std::size_t count = 0;
  Device device;                         // without a name
  const DevicePreset* preset = nullptr;  // if that is how it is named
};

std::string device_meant_by(std::string_view text) {
  std::vector<std::string> known;
  for (const DevicePreset& preset : all_device_presets()) known.emplace_back(preset.name);
  return did_you_mean(printable(text, 60), known);
}

// "host", "host:64GiB": there is one, so it needs no count.
std::optional<DeviceGroup> parse_host(std::string_view part) {
  std::string_view rest = part;
  if (trim(take_until(rest, ':')) != kHostKind) return std::nullopt;
  DeviceGroup group{1, {{}, std::string(kHostKind), kAmpleHost, "localhost", kFullSpeed}};
  if (part.find(':') == part.npos) return group;
  try {
    group.device.capacity = parse_bytes(trim(rest));
  } catch (const InputError& error) {
    throw_bad_part(part, error.what());
  }
  return group;
}

// What stands where a number of devices should.
[[noreturn]] void throw_no_count(std::string_view part) {
  std::string near = "; did you mean '1x" + std::string(part) + "'?";
  if (find_device_preset(part) == nullptr) {
    std::vector<std::string> known{"paper", std::string(kHostKind)};
    for (const DevicePreset& preset : all_device_presets()) known.emplace_back(preset.name);
    near = did_you_mean(printable(part, 60), known);
  }
  throw_bad_part(part, "expected COUNTx[KIND:]MEMORY[@SPEED], such as 4x8GiB" + near);
}

DeviceGroup parse_group(std::string_view part) {
  if (std::optional<DeviceGroup> host = parse_host(part)) return *std::move(host);
  if (!part.empty() && is_letter(part.front())) throw_no_count(part);
  std::string_view rest = part;
  const std::string_view count = take_until(rest, 'x');
  DeviceGroup group{read_count(trim(count), part), {{}, "gpu", {}, "localhost", kFullSpeed}};
  if (const std::size_t colon = rest.find(':'); colon != rest.npos) {
    group.device.kind = std::string(trim(take_until(rest, ':')));
    if (!is_kind_name(group.device.kind))
      throw_bad_part(part, "the device kind before ':' must be of letters, digits and _-./");
  }
  const bool has_speed = rest.find('@') != rest.npos;
  const std::string_view memory = trim(take_until(rest, '@'));
  if (part.find(':') == part.npos) group.preset = find_device_preset(memory);
  if (group.preset != nullptr) {
    group.device.kind = std::string(group.preset->name);
    group.device.capacity = group.preset->capacity;
  } else if (!memory.empty() && is_letter(memory.front())) {
    throw_bad_part(part, "'" + printable(memory, 60) + "' is no amount of memory, such as 24GiB" +
                             device_meant_by(memory) + "; known devices are " +
                             device_preset_names());
  }
  try {
    if (group.preset == nullptr) group.device.capacity = parse_bytes(memory);
    if (has_speed) group.device.speed = parse_speed(trim(rest));
  } catch (const InputError& error) {
    throw_bad_part(part, error.what());
  }
  return group;
}

// A link that leads nowhere, or in circles, is one too: opening it says what is wrong.
bool is_file(const std::string& name) {
  std::error_code error;
  return name == "-" || std::filesystem::exists(std::filesystem::symlink_status(name, error)) ||
         error == std::errc::too_many_symbolic_link_levels || error == std::errc::permission_denied;
}

// A file that is missing and a one-liner with a slip look alike: says both.
ClusterSpec read_named_or_line(const std::string& text) {
  if (std::optional<ClusterSpec> preset = preset_cluster(text)) return *std::move(preset);
  try {
    return parse_cluster_line(text);
  } catch (const InputError& error) {
    if (text.find('/') != text.npos || text.ends_with(".json"))
      throw InputError(text, "cannot open: no such file");
    if (text == "auto")
      throw_bad_part(text,
                     "only baechi.torch and baechi.tensorflow look for the devices that are "
                     "here: name them, such as 2x24GiB");
    throw;
  }
}

}  // namespace

ClusterSpec parse_cluster_line(std::string_view line) {
  ClusterSpec spec;
  std::map<std::string, std::size_t> next_number;  // of each kind
  std::vector<const DevicePreset*> presets;
  std::string_view rest = line;
  do {
    const bool last = rest.find('+') == rest.npos;
    const std::string_view part = trim(take_until(rest, '+'));
    if (part.empty() && line.find('+') != line.npos)
      throw_bad_part(line, "a '+' has devices on both sides, such as 2x24GiB+2x8GiB");
    const DeviceGroup group = parse_group(part);
    if (spec.devices.size() + group.count > kMaxDevices)
      throw_bad_part(line, "more than " + std::to_string(kMaxDevices) + " devices");
    if (group.preset != nullptr && std::ranges::find(presets, group.preset) == presets.end())
      presets.push_back(group.preset);
    for (std::size_t i = 0; i < group.count; ++i) {
      Device device = group.device;
      device.name = device.kind + ":" + std::to_string(next_number[device.kind]++);
      spec.devices.push_back(std::move(device));
    }
    if (last) break;
  } while (true);
  spec.links = preset_links(presets);
  spec.links.insert(spec.links.begin(), parse_link(kDefaultLink));
  try {
    link_to_host(spec);
    return Cluster(std::move(spec)).spec();
  } catch (const InputError& error) {
    throw_bad_part(line, error.what());
  }
}

std::vector<std::string> link_names() {
  std::vector<std::string> names;
  for (const LinkName& known : kLinkNames) names.emplace_back(known.name);
  return names;
}

LinkRule parse_link(std::string_view text) try {
  for (const LinkName& known : kLinkNames)
    if (in_lower_case(text) == known.name) return rule_of(known.link);
  LinkRule rule;
  std::string_view rest = text;
  const bool has_bandwidth = text.find(',') != text.npos;
  rule.latency = parse_time(trim(take_until(rest, ',')));
  if (has_bandwidth && trim(rest) != "unlimited") rule.bandwidth = parse_bandwidth(trim(rest));
  if (rule.bandwidth == Bandwidth(0)) throw InputError("the bandwidth must be positive");
  return rule;
} catch (const InputError& error) {
  std::string names;
  for (const std::string& name : link_names()) names += (names.empty() ? "" : ", ") + name;
  const std::string near = did_you_mean(printable(text, 60), link_names());
  const bool is_word = !text.empty() && is_letter(text.front());
  throw InputError("link '" + printable(text, 60) + "'",
                   (is_word ? "no link has that name" : std::string(error.what())) + near +
                       " (expected LATENCY,BANDWIDTH such as " + std::string(kDefaultLink) +
                       ", or a name: " + names + ")");
}

CommunicationMode parse_communication(std::string_view text) {
  for (const CommunicationMode mode :
       {CommunicationMode::kParallel, CommunicationMode::kSequential, CommunicationMode::kDuplex})
    if (communication_name(mode) == text) return mode;
  throw InputError("communication '" + printable(text, 60) + "'",
                   "expected parallel, sequential or duplex" +
                       did_you_mean(printable(text, 60), {"parallel", "sequential", "duplex"}));
}

Sends parse_sends(std::string_view text) {
  for (const Sends sends : {Sends::kFree, Sends::kBlocking})
    if (sends_name(sends) == text) return sends;
  throw InputError(
      "sends '" + printable(text, 60) + "'",
      "expected free or blocking, or what a message takes its ends, such as 100us,150us" +
          did_you_mean(printable(text, 60), {"free", "blocking"}));
}

MessageTime parse_message_time(std::string_view text) try {
  std::string_view rest = text;
  MessageTime message;
  message.send = parse_time(trim(take_until(rest, ',')));
  message.receive = parse_time(trim(rest));
  return message;
} catch (const InputError& error) {
  throw InputError("sends '" + printable(text, 60) + "'",
                   std::string(error.what()) + " (expected SEND,RECEIVE such as 100us,150us)");
}

HostTime parse_host_time(std::string_view text) try {
  std::string_view rest = text;
  const auto commas = std::count(text.begin(), text.end(), ',');
  HostTime host;
  host.call = parse_time(trim(take_until(rest, ',')));
  host.send = commas > 0 ? parse_time(trim(take_until(rest, ','))) : host.call;
  if (commas > 1) host.step = parse_time(trim(rest));
  return host;
} catch (const InputError& error) {
  throw InputError(
      "host time '" + printable(text, 60) + "'",
      std::string(error.what()) + " (expected CALL,SEND or CALL,SEND,STEP such as 2us,10us)");
}

ClusterSpec parse_cluster(std::string_view text, const std::string& place) {
  const DocumentKind kind = document_kind(text, place);
  if (!kind.format.has_value() &&
      std::find(kind.fields.begin(), kind.fields.end(), "maxFPGAs") != kind.fields.end())
    return cluster_of(parse_dnn_partitioning(text, place), place);
  if (kind.format == "baechi-graph" || kind.format == "baechi-plan")
    throw InputError(place, "this is a " + kind.format->substr(7) + ", expected a cluster");
  JsonReader json(text, place);
  ClusterSpec spec = read_cluster_object(json, true);
  json.finish();
  return spec;
}

ClusterSpec read_cluster_file(const std::filesystem::path& path) {
  const SourceText source = read_text_file(path);
  return reading(source.name, [&] { return parse_cluster(source.text, source.name); });
}

ClusterSpec read_cluster(const ClusterArgument& argument) {
  return changed(is_file(argument.cluster) ? read_cluster_file(argument.cluster)
                                           : read_named_or_line(argument.cluster),
                 argument);
}

ClusterSpec changed(ClusterSpec spec, const ClusterArgument& argument) {
  if (argument.host_memory.has_value()) add_host(spec, *argument.host_memory);
  if (argument.link.has_value()) spec.links = {parse_link(*argument.link)};
  if (argument.communication.has_value())
    spec.communication = parse_communication(*argument.communication);
  if (argument.sends.has_value()) {
    const bool timed = argument.sends->find(',') != std::string::npos;
    spec.sends = timed ? Sends::kFree : parse_sends(*argument.sends);
    spec.message_time.reset();
    if (timed) spec.message_time = parse_message_time(*argument.sends);
  }
  if (argument.host_time.has_value()) spec.host_time = parse_host_time(*argument.host_time);
  return spec;
}

}  // namespace baechi
