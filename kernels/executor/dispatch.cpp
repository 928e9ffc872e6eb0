#include "kernels/executor/dispatch.h"

#include <string>

namespace levin {

void fail_unsupported(const OpInfo& info, const Tensor& x, std::span<const DType> has) {
  const bool stored = is_storage(x.dtype());
  if (x.device().launches() && !stored)
    fail<UnsupportedError>(std::string(info.name), ": ", x.dtype(), " on ", x.device(),
                           "; has no kernel for it, use to(Device::cpu())");
  std::string names;
  for (const DType dtype : has) names += (names.empty() ? "" : ", ") + std::string(name(dtype));
  fail<UnsupportedError>(std::string(info.name), ": ", x.dtype(), " on ", x.device(), "; has ", names,
                         stored ? "; convert with to(DType::i32)" : "");
}

}  // namespace levin
