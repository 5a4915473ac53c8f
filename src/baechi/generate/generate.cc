// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/generate.h"

#include <algorithm>
#include <string>
#include <vector>

#include "baechi/base/error.h"
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

void take_costing(Costing& costing, const GenerateRequest& request) {
  take(costing.kinds, request.kinds);
  take(costing.precision, request.precision);
  costing.cancel = request.cancel;
}

OpGraph gnmt(const GenerateRequest& request) {
  GnmtOptions options;
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  take(options.length, request.length);
  take(options.layers, request.layers);
  return generate_gnmt(options);
}

OpGraph inception_v3(const GenerateRequest& request) {
  InceptionV3Options options;
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  return generate_inception_v3(options);
}

OpGraph transformer(const GenerateRequest& request) {
  TransformerOptions options;
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  take(options.length, request.length);
  take(options.layers, request.layers);
  return generate_transformer(options);
}

OpGraph language_model(LlamaOptions options, const GenerateRequest& request) {
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  take(options.length, request.length);
  take(options.layers, request.layers);
  take(options.training, request.training);
  return generate_llama(options);
}
OpGraph llama(const GenerateRequest& request) { return language_model({}, request); }
OpGraph moe(const GenerateRequest& request) { return language_model(mixtral_options(), request); }

OpGraph unet(const GenerateRequest& request) {
  UnetOptions options;
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  take(options.layers, request.layers);
  take(options.training, request.training);
  return generate_unet(options);
}

OpGraph two_tower(const GenerateRequest& request) {
  TwoTowerOptions options;
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  take(options.layers, request.layers);
  take(options.training, request.training);
  return generate_two_tower(options);
}

template <OpGraph (*kGenerate)(const SyntheticOptions&)>
OpGraph synthetic(const GenerateRequest& request) {
  SyntheticOptions options;
  take_costing(options.costing, request);
  take(options.operators, request.operators);
  take(options.seed, request.seed);
  return kGenerate(options);
}

constexpr GeneratorEntry kGenerators[] = {
    {"chain", "one operator after the other", "operators seed precision",
     synthetic<generate_chain>},
    {"fork-join", "one operator, many side by side, one operator", "operators seed precision",
     synthetic<generate_fork_join>},
    {"layered", "random layers, operators that read a few of the layers before",
     "operators seed precision", synthetic<generate_layered>},
    {"gnmt", "machine translation as the paper trains it, unrolled LSTM layers with attention",
     "batch length layers precision", gnmt, 50, true},
    {"inception-v3", "image classifier as the paper trains it, parallel branches of convolutions",
     "batch precision", inception_v3},
    {"transformer", "machine translation as the paper trains it, attention only",
     "batch length layers precision", transformer, 500},
    {"llama", "decoder-only language model of Llama 3 8B's sizes, modules, fp16",
     "batch length layers training precision", llama, 10},
    {"moe", "language model of Mixtral 8x7B's sizes: experts side by side, modules, fp16",
     "batch length layers training precision", moe, 30},
    {"unet", "image segmentation: down and up again with connections across, modules",
     "batch layers training precision", unet},
    {"two-tower", "recommender: two branches, large embedding tables, modules",
     "batch layers training precision", two_tower},
};

bool listens(const GeneratorEntry& generator, std::string_view option) {
  return (" " + std::string(generator.options) + " ").find(" " + std::string(option) + " ") !=
         std::string::npos;
}

void check_option(const GeneratorEntry& generator, std::string_view option, bool asked) {
  if (asked && !listens(generator, option))
    throw InputError("'" + std::string(generator.name) + "' has no option " + std::string(option) +
                     "; it has: " + std::string(generator.options));
}

void check_size(const GeneratorEntry& generator, const GenerateRequest& request) {
  if (generator.operators_per_layer == 0) return;
  std::int64_t left = kMostGeneratedOperators / generator.operators_per_layer;
  std::string words = "layers";
  if (generator.unrolled) {
    words += " times length";
    left /= std::max<std::int64_t>(1, request.length.value_or(1));
  }
  if (request.layers.value_or(1) > left)
    throw InputError(std::string(generator.name) + ": " + words + " is too large: more than " +
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
    check_option(generator, "length", request.length.has_value());
    check_option(generator, "layers", request.layers.has_value());
    check_option(generator, "operators", request.operators.has_value());
    check_option(generator, "seed", request.seed.has_value());
    check_option(generator, "training", request.training.has_value());
    check_option(generator, "precision", request.precision.has_value());
    check_size(generator, request);
    return generator.generate(request);
  }
  throw InputError("unknown graph '" + std::string(name) + "'; known: " + known);
}

}  // namespace baechi
