// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <map>

#include "baechi/generate/generate.h"
#include "bindings.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {

void bind_generate(nb::module_& m) {
  m.def(
      "generate",
      [](const std::string& model, std::optional<std::int64_t> batch,
         std::optional<std::int64_t> length, std::optional<std::int64_t> layers,
         std::optional<std::int64_t> operators, std::optional<std::uint64_t> seed,
         const std::optional<std::string>& device, std::optional<bool> training,
         std::optional<std::int64_t> micro_batches, std::optional<bool> shared_embedding,
         std::optional<bool> project_at_once) {
        GenerateRequest request{.batch = batch,
                                .micro_batches = micro_batches,
                                .length = length,
                                .layers = layers,
                                .operators = operators,
                                .seed = seed,
                                .training = training,
                                .shared_embedding = shared_embedding,
                                .project_at_once = project_at_once};
        if (device.has_value()) request.kinds = parse_costed_kinds(*device);
        return GraphHandle{
            std::make_shared<const OpGraph>(interruptible([&](const CancelFlag* cancel) {
              request.cancel = cancel;
              return generate_graph(model, request);
            }))};
      },
      "model"_a, nb::kw_only(), "batch"_a = nb::none(), "length"_a = nb::none(),
      "layers"_a = nb::none(), "operators"_a = nb::none(), "seed"_a = nb::none(),
      "device"_a = nb::none(), "training"_a = nb::none(), "micro_batches"_a = nb::none(),
      "shared_embedding"_a = nb::none(), "project_at_once"_a = nb::none(),
      "A synthetic graph: see models(). `device` names the presets that costs are estimated for, "
      "'gpu=rtx2080' or 'gpu=a100,cpu=cpu'; `training` says whether it is a whole step of training "
      "or one forward pass, where the model's default is the other. With `micro_batches` the graph "
      "is of one of so many equal parts of the batch. With `shared_embedding` source, target and "
      "output of 'transformer' have one matrix of words; with `project_at_once` all steps of "
      "'gnmt' "
      "are projected onto the vocabulary at once.");
  m.def(
      "models",
      [] {
        std::map<std::string, std::string> models;
        for (const GeneratorEntry& entry : all_generators())
          models.emplace(entry.name, entry.summary);
        return models;
      },
      "The names of all models of generate(), and what they are.");
}

}  // namespace baechi::python
