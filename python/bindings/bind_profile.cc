// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/io/profile/profile_file.h"
#include "baechi/io/text/text_file.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

struct OperatorProfileHandle {  // a light view
  std::shared_ptr<const Profile> profile;
  const OperatorProfile* op;
};

using Sizes = std::vector<std::optional<std::int64_t>>;

std::optional<std::int64_t> count_of(const std::optional<Bytes>& bytes) {
  return bytes.has_value() ? std::optional(bytes->count()) : std::nullopt;
}

Sizes counts_of(const std::vector<std::optional<Bytes>>& sizes) {
  Sizes counts;
  for (const std::optional<Bytes>& size : sizes) counts.push_back(count_of(size));
  return counts;
}

ProfileHandle handle(Profile profile) {
  return {std::make_shared<const Profile>(std::move(profile))};
}

// Nullptr when the profile has no operator of this name.
const OperatorProfile* find(const Profile& profile, std::string_view name) {
  const auto found = std::find_if(profile.operators.begin(), profile.operators.end(),
                                  [&](const OperatorProfile& op) { return op.name == name; });
  return found == profile.operators.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_costs(const nb::handle& found) {
  throw nb::type_error(("costs: expected a baechi.Profile, the path of one or KIND=PRESET such as "
                        "'gpu=rtx3090', or a list of these, found " +
                        words_of(found))
                           .c_str());
}

void add(const nb::handle& item, ModelCosts& costs) {
  if (nb::isinstance<ProfileHandle>(item)) {
    costs.profiles.push_back({"profile", *nb::cast<ProfileHandle>(item).profile});
    return;
  }
  const bool is_text = nb::isinstance<nb::str>(item);
  if (!is_text && !nb::hasattr(item, "__fspath__")) refuse_costs(item);
  auto text =
      is_text ? nb::cast<std::string>(item) : nb::cast<std::filesystem::path>(item).string();
  if (!is_text && text.find('/') == text.npos) text.insert(0, "./");  // a path, whatever its name
  if (!text.empty()) add_model_costs(text, costs);
}

void bind_operator_profile(nb::module_& m) {
  nb::class_<OperatorProfileHandle>(m, "OperatorProfile", "What was measured of one operator.")
      .def_prop_ro("name", [](const OperatorProfileHandle& h) { return h.op->name; })
      .def_prop_ro(
          "times",
          [](const OperatorProfileHandle& h) {
            nb::typed<nb::dict, std::string, std::int64_t> times;
            for (const KindTime& time : h.op->times) times[nb::cast(time.kind)] = time.time.count();
            return times;
          },
          "Nanoseconds by device kind.")
      .def_prop_ro(
          "permanent", [](const OperatorProfileHandle& h) { return count_of(h.op->permanent); },
          "Bytes held for the whole step; None when they were not measured.")
      .def_prop_ro(
          "temporary", [](const OperatorProfileHandle& h) { return count_of(h.op->temporary); },
          "Bytes held while it runs; None when they were not measured.")
      .def_prop_ro(
          "outputs", [](const OperatorProfileHandle& h) { return counts_of(h.op->transferred); },
          "Bytes that another device is sent of each output, by port.")
      .def_prop_ro(
          "allocated", [](const OperatorProfileHandle& h) { return counts_of(h.op->allocated); },
          "Bytes that were allocated for each output: 0 for an alias of something else.");
}

}  // namespace

ModelCosts model_costs_of(const nb::object& costs, std::optional<std::int64_t> batch) {
  if (batch.has_value() && *batch < 1)
    throw InputError("batch", "expected a positive number, found " + std::to_string(*batch));
  ModelCosts result{.batch = batch, .in_python = true};
  const bool is_one = nb::isinstance<nb::str>(costs) || nb::isinstance<ProfileHandle>(costs) ||
                      nb::hasattr(costs, "__fspath__");
  if (is_one) {
    add(costs, result);
  } else if (!PySequence_Check(costs.ptr())) {
    refuse_costs(costs);
  } else {
    for (const nb::handle item : costs) add(item, result);
  }
  return result;
}

void warn_of_profiles(const OpGraph& graph, const ModelCosts& costs) {
  for (const std::string& note : profile_notes(graph, costs))
    if (PyErr_WarnEx(PyExc_UserWarning, note.c_str(), 1) != 0) throw nb::python_error();
}

void bind_profile(nb::module_& m) {
  bind_operator_profile(m);
  nb::class_<ProfileHandle>(m, "Profile",
                            "Measured costs of a model's operators, by their names. Immutable.")
      .def_static(
          "load",
          [](const std::filesystem::path& path) {
            nb::gil_scoped_release unlocked;
            return handle(read_profile(path));
          },
          "path"_a, "Reads profile.json.")
      .def_static(
          "from_json",
          [](const std::string& text) { return handle(parse_profile(text, "<string>")); }, "text"_a)
      .def("to_json", [](const ProfileHandle& h) { return profile_to_json(*h.profile); })
      .def(
          "save",
          [](const ProfileHandle& h, const std::filesystem::path& path) {
            nb::gil_scoped_release unlocked;
            write_text_file(path, profile_to_json(*h.profile));
          },
          "path"_a, "Writes profile.json, atomically.")
      .def_prop_ro(
          "source", [](const ProfileHandle& h) { return h.profile->source; },
          "By what and how it was measured.")
      .def_prop_ro("batch_size", [](const ProfileHandle& h) { return h.profile->batch_size; })
      .def_prop_ro(
          "device_kinds", [](const ProfileHandle& h) { return measured_kinds(*h.profile); },
          "The device kinds that it has times for.")
      .def_prop_ro(
          "operators",
          [](const ProfileHandle& h) {
            nb::typed<nb::dict, std::string, OperatorProfileHandle> operators;
            for (const OperatorProfile& op : h.profile->operators)
              operators[nb::cast(op.name)] = OperatorProfileHandle{h.profile, &op};
            return operators;
          },
          "What was measured of each operator, by name.")
      .def("__len__", [](const ProfileHandle& h) { return h.profile->operators.size(); })
      .def("__contains__", [](const ProfileHandle& h,
                              std::string_view name) { return find(*h.profile, name) != nullptr; })
      .def(
          "__eq__",
          [](const ProfileHandle& a, const ProfileHandle& b) { return *a.profile == *b.profile; },
          nb::sig("def __eq__(self, other: object, /) -> bool"), nb::is_operator())
      .def("__getstate__", [](const ProfileHandle& h) { return profile_to_json(*h.profile); })
      .def("__setstate__",
           [](ProfileHandle& h, const std::string& text) {
             new (&h) ProfileHandle(handle(parse_profile(text, "<pickle>")));
           })
      .def("__repr__", [](const ProfileHandle& h) {
        return "<Profile: " + std::to_string(h.profile->operators.size()) + " operators>";
      });
}

}  // namespace baechi::python
