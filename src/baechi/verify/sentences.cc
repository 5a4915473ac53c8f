// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/sentences.h"

#include "baechi/base/in_quotes.h"

namespace baechi {
std::string Sentences::name(OpId op) const { return in_quotes((*graph_)[op].name); }

std::string Sentences::op(OpId op) const { return "operator " + name(op); }

std::string Sentences::device(DeviceId device) const { return in_quotes((*cluster_)[device].name); }

std::string Sentences::tensor(TensorId tensor) const {
  const OpId producer = graph_->producer(tensor);
  const IdRange<TensorId> outputs = graph_->outputs(producer);
  const std::string of = " of " + in_quotes((*graph_)[producer].name);
  if (outputs.size() == 1) return "the output" + of;
  return "output " + std::to_string(tensor.index() - (*outputs.begin()).index()) + of;
}

std::string Sentences::transfer(const Transfer& transfer) const {
  return "the transfer of " + tensor(transfer.tensor) + " from " + device(transfer.from) + " to " +
         device(transfer.to);
}

std::string Sentences::time(Time time) { return std::to_string(time.count()) + " ns"; }

std::string Sentences::bytes(Bytes bytes) { return std::to_string(bytes.count()) + " bytes"; }

}  // namespace baechi
