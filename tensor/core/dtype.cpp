#include "levin/dtype.h"

namespace levin {

const char* name(DType t) {
  constexpr const char* names[kDTypeCount] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool", "i8", "i16"};
  return names[static_cast<int>(t)];
}

double epsilon(DType t) {
  switch (t) {
    case DType::f32: return 0x1p-23;
    case DType::f64: return 0x1p-52;
    case DType::f16: return 0x1p-10;
    case DType::bf16: return 0x1p-7;
    default: fail<DTypeError>("epsilon: dtype is ", t, ", expected a floating one");
  }
}

std::string text(const Scalar& s) {
  if (s.above<std::int64_t>()) return text(s.to<std::uint64_t>());
  return s.is_integer() ? text(s.integer()) : text(s.real());
}

}  // namespace levin
