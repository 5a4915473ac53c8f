// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/cost/device_presets.h"
#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/cluster/write_cluster.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/text_file.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

ClusterHandle handle(ClusterSpec spec) {
  return {std::make_shared<const Cluster>(std::move(spec))};
}

DeviceId device_id(const Cluster& cluster, std::string_view name) {
  const std::optional<DeviceId> device = cluster.find(name);
  if (!device.has_value()) throw nb::key_error(("no device '" + std::string(name) + "'").c_str());
  return *device;
}

const char* mode_name(CommunicationMode mode) {
  switch (mode) {
    case CommunicationMode::kParallel:
      return "parallel";
    case CommunicationMode::kSequential:
      return "sequential";
    case CommunicationMode::kDuplex:
      return "duplex";
  }
  return "";
}

std::int64_t roofline_ns(std::string_view preset, std::int64_t flops, std::int64_t bytes,
                         std::string_view precision) {
  const std::optional<Precision> found = find_precision(precision);
  if (!found.has_value())
    throw InputError("unknown precision '" + std::string(precision) + "': fp32, tf32, fp16, bf16");
  if (flops < 0 || bytes < 0) throw InputError("flops and bytes must not be negative");
  return roofline_time(device_preset(preset),
                       {.flops = flops, .bytes = Bytes(bytes), .precision = *found})
      .count();
}

}  // namespace

void bind_cluster(nb::module_& m) {
  m.def(
      "device_presets",
      [] {
        std::map<std::string, std::string> described;
        for (const DevicePreset& preset : all_device_presets())
          described.emplace(preset.name, preset.description);
        return described;
      },
      "The devices that costs can be estimated for, by name, and what they are.");
  m.def("roofline_time", &roofline_ns, "preset"_a, "flops"_a, "bytes"_a, nb::kw_only(),
        "precision"_a = "fp32",
        "Nanoseconds that a kernel of so many FLOPs, reading and writing so many bytes, takes on a "
        "device preset: its launch and the slower of computing and moving.");

  nb::class_<Device>(m, "Device", "A memory-limited device of a cluster.")
      .def_prop_ro("name", [](const Device& d) { return d.name; })
      .def_prop_ro(
          "kind", [](const Device& d) { return d.kind; },
          "Which of an operator's compute times holds here.")
      .def_prop_ro(
          "capacity", [](const Device& d) { return d.capacity.count(); }, "Bytes.")
      .def_prop_ro("host", [](const Device& d) { return d.host; })
      .def_prop_ro(
          "speed",
          [](const Device& d) {
            return static_cast<double>(d.speed.count()) / static_cast<double>(kFullSpeed.count());
          },
          "Beside others of its kind: an operator takes time / speed.")
      .def("__repr__", [](const Device& d) { return "Device('" + d.name + "')"; });

  nb::class_<ClusterHandle>(m, "Cluster", nb::type_slots(kLooksUpInit),
                            "Devices and the links between them. Immutable.")
      .def(
          "__init__",
          [](ClusterHandle* self, const std::string& text, std::optional<std::string> link,
             std::optional<std::string> communication, std::optional<std::string> host_time,
             std::optional<std::string> sends) {
            new (self)
                ClusterHandle(handle(read_cluster({text, std::move(link), std::move(communication),
                                                   std::move(host_time), std::move(sends)})));
          },
          "text"_a, nb::kw_only(), "link"_a = nb::none(), "communication"_a = nb::none(),
          "host_time"_a = nb::none(), "sends"_a = nb::none(),
          "From one line such as '2x24GiB+2x8GiB@0.6', a preset's name, or a file's path. `link` "
          "('50us,6GB/s') replaces all links; `communication` is 'parallel', 'sequential' or "
          "'duplex'; `host_time` ('2us,10us') is what asking for an operator and for a transfer "
          "takes, and perhaps ('2us,10us,1ms') what comes before the first of a step; with `sends` "
          "'blocking' a device runs nothing while it sends, and with "
          "'100us,150us' a message takes its sender and its receiver that long.")
      .def_static(
          "from_json",
          [](const std::string& text) { return handle(parse_cluster(text, "<string>")); }, "text"_a)
      .def("to_json", [](const ClusterHandle& h) { return cluster_to_json(h.cluster->spec()); })
      .def(
          "save",
          [](const ClusterHandle& h, const std::filesystem::path& path) {
            write_text_file(path, cluster_to_json(h.cluster->spec()));
          },
          "path"_a, "Writes cluster.json, atomically.")
      .def_prop_ro("name", [](const ClusterHandle& h) { return h.cluster->name(); })
      .def_prop_ro("communication",
                   [](const ClusterHandle& h) { return mode_name(h.cluster->communication()); })
      .def_prop_ro("sends",
                   [](const ClusterHandle& h) {
                     if (const auto& time = h.cluster->message_time())
                       return exact_text(time->send) + "," + exact_text(time->receive);
                     return std::string(h.cluster->sends_block() ? "blocking" : "free");
                   })
      .def_prop_ro(
          "host_time_ns",
          [](const ClusterHandle& h)
              -> std::optional<std::tuple<std::int64_t, std::int64_t, std::int64_t>> {
            const auto& host = h.cluster->host_time();
            if (!host.has_value()) return std::nullopt;
            return std::tuple(host->call.count(), host->send.count(), host->step.count());
          },
          "What asking for an operator and for a transfer takes, and what comes before the first "
          "of a step; None: no time.")
      .def_prop_ro("devices", [](const ClusterHandle& h) { return h.cluster->spec().devices; })
      .def(
          "with_capacities",
          [](const ClusterHandle& h, const std::map<std::string, std::int64_t>& capacities) {
            ClusterSpec spec = h.cluster->spec();
            for (const auto& [name, bytes] : capacities) {
              if (bytes <= 0)
                throw InputError("the capacity of '" + name + "' must be positive, not " +
                                 std::to_string(bytes));
              spec.devices[device_id(*h.cluster, name).index()].capacity = Bytes(bytes);
            }
            return handle(std::move(spec));
          },
          "capacities"_a, "The same cluster, but for the bytes of the devices that are named.")
      .def(
          "transfer_time",
          [](const ClusterHandle& h, std::int64_t bytes, std::string_view from,
             std::string_view to) {
            const Cluster& c = *h.cluster;
            const DeviceId a = device_id(c, from), b = device_id(c, to);
            if (bytes < 0) throw nb::value_error("bytes must not be negative");
            return a == b ? 0 : c.link(a, b).transfer_time(Bytes(bytes)).count();
          },
          "bytes"_a, "source"_a, "target"_a,
          "Nanoseconds to send so many bytes between two devices.")
      .def("__len__", [](const ClusterHandle& h) { return h.cluster->num_devices(); })
      .def(
          "__eq__",
          [](const ClusterHandle& a, const ClusterHandle& b) {
            return a.cluster->spec() == b.cluster->spec();
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"), nb::is_operator())
      .def("__getstate__",
           [](const ClusterHandle& h) { return cluster_to_json(h.cluster->spec()); })
      .def("__setstate__",
           [](ClusterHandle& h, const std::string& text) {
             new (&h) ClusterHandle(handle(parse_cluster(text, "<pickle>")));
           })
      .def("__repr__", [](const ClusterHandle& h) {
        return "<Cluster of " + std::to_string(h.cluster->num_devices()) + " devices>";
      });
}

}  // namespace baechi::python
