// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/generate.h"

#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/near_name.h"
#include "baechi/generate/gnmt.h"
#include "baechi/generate/inception_v3.h"
#include "baechi/generate/llama.h"
#include "baechi/generate/synthetic.h"
#include "baechi/generate/transformer.h"
#include "baechi/generate/two_tower.h"
#include "baechi/generate/unet.h"

namespace baechi {
namespace {

template <class Value>
void take(Value& into, const std::optional<Value>& asked) {
  if (asked.has_value()) into = *asked;
}

std::int64_t size_of_part(std::int64_t batch, std::int64_t parts) {
  if (parts >= 1 && batch % parts == 0) return batch / parts;
  throw InputError(std::to_string(parts) + " micro-batches of a batch of " + std::to_string(batch) +
                   ": the number must divide it");
}

// What the request asks for, where these options have it.
template <class Options>
Options asked_of(const GenerateRequest& request, Options options = {}) {
  take(options.costing.kinds, request.kinds);
  take(options.costing.precision, request.precision);
  options.costing.cancel = request.cancel;
  if constexpr (requires { options.batch; }) {
    take(options.batch, request.batch);
    options.batch = size_of_part(options.batch, request.micro_batches.value_or(1));
  }
  if constexpr (requires { options.length; }) take(options.length, request.length);
  if constexpr (requires { options.layers; }) take(options.layers, request.layers);
  if constexpr (requires { options.training; }) take(options.training, request.training);
  if constexpr (requires { options.shared_embedding; })
    take(options.shared_embedding, request.shared_embedding);
  if constexpr (requires { options.project_at_once; })
    take(options.project_at_once, request.project_at_once);
  if constexpr (requires { options.operators; }) take(options.operators, request.operators);
  if constexpr (requires { options.seed; }) take(options.seed, request.seed);
  return options;
}

template <class Options, OpGraph (*kGenerate)(const Options&)>
OpGraph made(const GenerateRequest& request) {
  return kGenerate(asked_of<Options>(request));
}

OpGraph moe(const GenerateRequest& request) {
  return generate_llama(asked_of(request, mixtral_options()));
}

template <std::int64_t kPerLayer>
double per_layer(const GenerateRequest& request) {
  return kPerLayer * static_cast<double>(request.layers.value_or(1));
}

// An unrolled token takes 93 operators per layer, and 66 for attention and loss, or 52.
double gnmt_size(const GenerateRequest& request) {
  const GnmtOptions options = asked_of<GnmtOptions>(request);
  return static_cast<double>(options.length) * (52 + 93 * static_cast<double>(options.layers));
}

constexpr GeneratorEntry kGenerators[] = {
    {"chain", "one operator after the other", "operators seed precision",
     made<SyntheticOptions, generate_chain>},
    {"fork-join", "one operator, many side by side, one operator", "operators seed precision",
     made<SyntheticOptions, generate_fork_join>},
    {"layered", "random layers, operators that read a few of the layers before",
     "operators seed precision", made<SyntheticOptions, generate_layered>},
    {"gnmt", "machine translation as the paper trains it, unrolled LSTM layers with attention",
     "batch micro-batches length layers project-at-once precision",
     made<GnmtOptions, generate_gnmt>, gnmt_size},
    {"inception-v3", "image classifier as the paper trains it, parallel branches of convolutions",
     "batch micro-batches precision", made<InceptionV3Options, generate_inception_v3>},
    {"transformer", "machine translation as the paper trains it, attention only",
     "batch micro-batches length layers shared-embedding precision",
     made<TransformerOptions, generate_transformer>, per_layer<1250>},
    {"llama", "decoder-only language model of Llama 3 8B's sizes, modules, fp16",
     "batch micro-batches length layers training precision", made<LlamaOptions, generate_llama>,
     per_layer<15>},
    {"moe", "language model of Mixtral 8x7B's sizes: experts side by side, modules, fp16",
     "batch micro-batches length layers training precision", moe, per_layer<46>},
    {"unet", "image segmentation: down and up again with connections across, modules",
     "batch micro-batches layers training precision", made<UnetOptions, generate_unet>},
    {"two-tower", "recommender: two branches, large embedding tables, modules",
     "batch micro-batches layers training precision", made<TwoTowerOptions, generate_two_tower>},
};

bool listens(const GeneratorEntry& generator, std::string_view option) {
  return (" " + std::string(generator.options) + " ").find(" " + std::string(option) + " ") !=
         std::string::npos;
}

void check_option(const GeneratorEntry& generator, std::string_view option, bool asked) {
  if (asked && !listens(generator, option))
    throw InputError(in_quotes(generator.name) + " has no option " + std::string(option) +
                     "; it has: " + std::string(generator.options));
}

void check_size(const GeneratorEntry& generator, const GenerateRequest& request) {
  if (generator.least_operators == nullptr ||
      generator.least_operators(request) <= static_cast<double>(kMostGeneratedOperators))
    return;
  throw InputError(std::string(generator.name) + ": the graph would have more than " +
                   std::to_string(kMostGeneratedOperators) + " operators");
}

}  // namespace

std::span<const GeneratorEntry> all_generators() { return kGenerators; }

OpGraph generate_graph(std::string_view name, const GenerateRequest& request) {
  std::string known;
  for (const GeneratorEntry& generator : kGenerators) {
    known += (known.empty() ? "" : ", ") + std::string(generator.name);
    if (generator.name != name) continue;
    check_option(generator, "batch", request.batch.has_value());
    check_option(generator, "micro-batches", request.micro_batches.has_value());
    check_option(generator, "length", request.length.has_value());
    check_option(generator, "layers", request.layers.has_value());
    check_option(generator, "operators", request.operators.has_value());
    check_option(generator, "seed", request.seed.has_value());
    check_option(generator, "training", request.training.has_value());
    check_option(generator, "shared-embedding", request.shared_embedding.has_value());
    check_option(generator, "project-at-once", request.project_at_once.has_value());
    check_option(generator, "precision", request.precision.has_value());
    check_size(generator, request);
    return generator.generate(request);
  }
  std::vector<std::string> names;
  for (const GeneratorEntry& generator : kGenerators) names.emplace_back(generator.name);
  throw InputError("unknown graph '" + std::string(name) + "'" +
                   did_you_mean(std::string(name), names) + "; known: " + known);
}

}  // namespace baechi
