// SPDX-License-Identifier: Apache-2.0
// torch.autocast("sim"): PyTorch's own lists of what is cast to what.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

// PyTorch's lists hand over an operator; its registration wants the policy, too.
#define BAECHI_TO_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define BAECHI_TO_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define BAECHI_SET_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define BAECHI_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

namespace at::autocast {
namespace {

Tensor binary_cross_entropy_banned(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(false,
              "binary_cross_entropy is unsafe to autocast: use "
              "binary_cross_entropy_with_logits instead");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(BAECHI_TO_LOWER_PRECISION)
  AT_FORALL_FP32(BAECHI_TO_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(BAECHI_SET_FP32)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(BAECHI_PROMOTE)
  m.impl("binary_cross_entropy", binary_cross_entropy_banned);
}

}  // namespace at::autocast
