// Comparisons and logic (bool results, no gradient), and selection by a condition.
#include <bit>
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/pointwise.h"

namespace levin {
namespace pointwise {
namespace {

#define LEVIN_COMPARISON(Type, op_name, sign)                                          \
  struct Type {                                                                        \
    static constexpr OpInfo info{.name = op_name, .autocast = AutocastPolicy::widest}; \
    static constexpr std::int64_t kGrain = pointwise::kGrain;                          \
    template <class T>                                                                 \
    LEVIN_HD bool operator()(T a, T b) const {                                         \
      return a sign b;                                                                 \
    }                                                                                  \
  }
LEVIN_COMPARISON(Eq, "eq", ==);
LEVIN_COMPARISON(Ne, "ne", !=);
LEVIN_COMPARISON(Lt, "lt", <);
LEVIN_COMPARISON(Le, "le", <=);
LEVIN_COMPARISON(Gt, "gt", >);
LEVIN_COMPARISON(Ge, "ge", >=);
#undef LEVIN_COMPARISON

// bool compares as the byte it is.
template <class T>
using Comparable = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

// Results are bool for operands of every dtype. i8 and i16 compare as i32.
template <class F>
struct Compare {
  static constexpr OpInfo info = F::info;
  Tensor forward(const Tensor& a, const Tensor& b) {
    const Shape shape = common_shape(info.name, a, b);
    if (is_storage(a.dtype())) return forward(a.to(DType::i32), b.to(DType::i32));
    Tensor out = empty_result(shape, a.device(), DType::b8, a, b);
    dispatch(info, a, kAll, [&]<class T>(const auto& on, T) {
      run(on, F{}, Signature<bool, Comparable<T>, Comparable<T>>{}, out, a, b);
    });
    return out;
  }
};
template <class F>
struct CompareNumber {
  static constexpr OpInfo info = F::info;
  Scalar number;
  Tensor forward(const Tensor& a) {
    check_kind(info.name, a.dtype(), number);
    // An integer that the dtype cannot hold is less than every element, or greater than every element.
    const Range range = range_of(number, a.dtype());
    if (range == Range::below) return full(a.shape(), F{}(1, 0), a.device(), DType::b8);
    if (range == Range::above) return full(a.shape(), F{}(0, 1), a.device(), DType::b8);
    if (is_storage(a.dtype())) return forward(a.to(DType::i32));
    Tensor out = empty_like(a, DType::b8);
    dispatch(info, a, kAll, [&]<class T>(const auto& on, T) {
      run(on, F{}, Signature<bool, Comparable<T>, Comparable<T>>{}, out, a,
          Immediate<Wide<Comparable<T>>>{static_cast<Wide<Comparable<T>>>(number.to<Wide<T>>())});
    });
    return out;
  }
};

struct IsNan {
  static constexpr OpInfo info{.name = "isnan"};
  static constexpr auto kTypes = kFloats;
  template <class T>
  LEVIN_HD bool operator()(T x) const {
    return x != x;
  }
};
struct IsInf {
  static constexpr OpInfo info{.name = "isinf"};
  static constexpr auto kTypes = kFloats;
  template <class T>
  LEVIN_HD bool operator()(T x) const {
    return std::abs(x) == std::numeric_limits<T>::infinity();
  }
};
struct IsFinite {
  static constexpr OpInfo info{.name = "isfinite"};
  static constexpr auto kTypes = kFloats;
  template <class T>
  LEVIN_HD bool operator()(T x) const {
    return std::abs(x) < std::numeric_limits<T>::infinity();
  }
};
struct LogicalNot {
  static constexpr OpInfo info{.name = "logical_not"};
  static constexpr auto kTypes = kBool;
  LEVIN_HD bool operator()(bool x) const { return !x; }
};
template <class F>
struct Test {
  static constexpr OpInfo info = F::info;
  Tensor forward(const Tensor& x) {
    Tensor out = empty_like(x, DType::b8);
    dispatch(info, x, F::kTypes, [&]<class T>(const auto& on, T) { run(on, F{}, Signature<bool, T>{}, out, x); });
    return out;
  }
};

struct And {
  static constexpr OpInfo info{.name = "logical_and"};
  LEVIN_HD bool operator()(bool a, bool b) const { return a && b; }
};
struct Or {
  static constexpr OpInfo info{.name = "logical_or"};
  LEVIN_HD bool operator()(bool a, bool b) const { return a || b; }
};
struct Xor {
  static constexpr OpInfo info{.name = "logical_xor"};
  LEVIN_HD bool operator()(bool a, bool b) const { return a != b; }
};
template <class F>
struct Logical {
  static constexpr OpInfo info = F::info;
  Tensor forward(const Tensor& a, const Tensor& b) { return map(info, F{}, kBool, a, b); }
};

// Values that are only moved: integers of the same width, so one loop serves several dtypes. The CPU's loops read
// 16-bit floats as float.
template <class T>
using Bits = std::conditional_t<
    sizeof(T) == 8, std::int64_t,
    std::conditional_t<sizeof(T) == 4, std::int32_t, std::conditional_t<sizeof(T) == 2, std::int16_t, std::uint8_t>>>;
template <class On, class T>
using Moved = std::conditional_t<std::is_same_v<On, Cpu>, Wide<T>, T>;
template <class On, class T>
using MovedBits = Bits<Moved<On, T>>;
// The CPU's loops read a mask as bytes: a compiler that chooses by bools of one byte among wider numbers (g++ 12)
// does so one by one.
template <class On>
using Mask = std::conditional_t<std::is_same_v<On, Cpu>, std::uint8_t, bool>;
struct Choose {
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  template <class M, class T>
  LEVIN_HD T operator()(M c, T a, T b) const {
    return c != 0 ? a : b;
  }
};

struct Where {
  static constexpr OpInfo info{.name = "where", .autocast = AutocastPolicy::widest};
  SavedInput condition{};
  Shape shape_a{}, shape_b{};
  Tensor forward(const Tensor& c, const Tensor& a, const Tensor& b) {
    check_same_device("where", c, a);
    if (c.dtype() != DType::b8) fail<DTypeError>("where: the condition is ", c.dtype(), ", expected bool");
    Tensor out =
        empty_result(broadcast_shapes("where", c.shape(), common_shape("where", a, b)), a.device(), a.dtype(), a, b, c);
    dispatch(info, a, kMoved, [&]<class On, class T>(const On& on, T) {
      using B = MovedBits<On, T>;
      run(on, Choose{}, Signature<B, Mask<On>, B, B>{}, out, c, a, b);
    });
    condition = c;
    shape_a = a.shape();
    shape_b = b.shape();
    return out;
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    Grads<3> grads;
    const auto reduced = [](Tensor g, const Shape& shape) { return g.shape() == shape ? g : sum_to(g, shape); };
    if (need[1]) grads[1] = reduced(where(condition.get(), gy, zeros_like(gy)), shape_a);
    if (need[2]) grads[2] = reduced(where(condition.get(), zeros_like(gy), gy), shape_b);
    return grads;
  }
};

struct Fill {
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  template <class M, class T>
  LEVIN_HD T operator()(T x, M m, T value) const {
    return m != 0 ? value : x;
  }
};

struct MaskedFill {
  static constexpr OpInfo info{.name = "masked_fill"};
  Scalar value;
  SavedInput mask{};
  Shape shape{};
  Tensor forward(const Tensor& x, const Tensor& m) {
    check_same_device("masked_fill", x, m);
    check_scalar("masked_fill", x, value);
    if (m.dtype() != DType::b8) fail<DTypeError>("masked_fill: the mask is ", m.dtype(), ", expected bool");
    Tensor out = empty_result(broadcast_shapes("masked_fill", x.shape(), m.shape()), x.device(), x.dtype(), x, m);
    dispatch(info, x, kMoved, [&]<class On, class T>(const On& on, T) {
      using B = MovedBits<On, T>;
      const Immediate<B> number{std::bit_cast<B>(static_cast<Moved<On, T>>(value.to<Wide<T>>()))};
      run(on, Fill{}, Signature<B, B, Mask<On>, B>{}, out, x, m, number);
    });
    mask = m;
    shape = x.shape();
    return out;
  }
  Grads<2> backward(const Tensor& gy, NeedMask) {
    Tensor g = masked_fill(gy, mask.get(), 0);
    return {g.shape() == shape ? g : sum_to(g, shape), Tensor()};
  }
};

LEVIN_OP_TABLE(Compare<Eq>)
LEVIN_OP_TABLE(Compare<Ne>)
LEVIN_OP_TABLE(Compare<Lt>)
LEVIN_OP_TABLE(Compare<Le>)
LEVIN_OP_TABLE(Compare<Gt>)
LEVIN_OP_TABLE(Compare<Ge>)
LEVIN_OP_TABLE(Test<IsNan>)
LEVIN_OP_TABLE(Test<IsInf>)
LEVIN_OP_TABLE(Test<IsFinite>)
LEVIN_OP_TABLE(Test<LogicalNot>)
LEVIN_OP_TABLE(Logical<And>)
LEVIN_OP_TABLE(Logical<Or>)
LEVIN_OP_TABLE(Logical<Xor>)
LEVIN_OP_TABLE(Where)
LEVIN_OP_TABLE(MaskedFill)

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor eq(const Tensor& a, const Tensor& b) { return apply(Compare<Eq>{}, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return apply(Compare<Ne>{}, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return apply(Compare<Lt>{}, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return apply(Compare<Le>{}, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return apply(Compare<Gt>{}, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return apply(Compare<Ge>{}, a, b); }
Tensor eq(const Tensor& a, Scalar b) { return apply(CompareNumber<Eq>{b}, a); }
Tensor ne(const Tensor& a, Scalar b) { return apply(CompareNumber<Ne>{b}, a); }
Tensor lt(const Tensor& a, Scalar b) { return apply(CompareNumber<Lt>{b}, a); }
Tensor le(const Tensor& a, Scalar b) { return apply(CompareNumber<Le>{b}, a); }
Tensor gt(const Tensor& a, Scalar b) { return apply(CompareNumber<Gt>{b}, a); }
Tensor ge(const Tensor& a, Scalar b) { return apply(CompareNumber<Ge>{b}, a); }
Tensor isnan(const Tensor& x) { return apply(Test<IsNan>{}, x); }
Tensor isinf(const Tensor& x) { return apply(Test<IsInf>{}, x); }
Tensor isfinite(const Tensor& x) { return apply(Test<IsFinite>{}, x); }
Tensor logical_not(const Tensor& x) { return apply(Test<LogicalNot>{}, x); }
Tensor logical_and(const Tensor& a, const Tensor& b) { return apply(Logical<And>{}, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return apply(Logical<Or>{}, a, b); }
Tensor logical_xor(const Tensor& a, const Tensor& b) { return apply(Logical<Xor>{}, a, b); }
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) { return apply(Where{}, condition, a, b); }
Tensor where(const Tensor& condition, const Tensor& a, Scalar b) {
  return where(condition, a, number_beside("where", b, a));
}
Tensor where(const Tensor& condition, Scalar a, const Tensor& b) {
  return where(condition, number_beside("where", a, b), b);
}
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) { return apply(MaskedFill{value}, x, mask); }

bool equal(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  return a.numel() == 0 || all(eq(a.detach(), b.detach())).item<bool>();
}

Tensor isclose(const Tensor& a, const Tensor& b, double rtol, double atol, EqualNan equal_nan) {
  (void)common_shape("isclose", a, b);
  const Tensor x = a.detach().to(DType::f64), y = b.detach().to(DType::f64);
  // The difference of equal infinities is NaN, so equality counts for itself. An infinite y makes the tolerance
  // infinite, so the difference has to be finite.
  const Tensor apart = abs(x - y);
  const Tensor near = logical_and(lt(apart, std::numeric_limits<double>::infinity()), le(apart, abs(y) * rtol + atol));
  const Tensor close = logical_or(eq(x, y), near);
  return equal_nan == EqualNan::yes ? logical_or(close, logical_and(isnan(x), isnan(y))) : close;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, EqualNan equal_nan) {
  check_same_dtype("allclose", a, b);
  if (a.shape() != b.shape()) return false;
  return a.numel() == 0 || all(isclose(a, b, rtol, atol, equal_nan)).item<bool>();
}

}  // namespace levin
