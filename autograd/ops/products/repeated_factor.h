// The right factor of many products, as the weight of a recurrent layer is.
#pragma once

#include "levin/tensor.h"

namespace levin {

// b [k, n], by which `times` matrices a of `rows` rows are multiplied. The rows of a are `a_row` numbers apart; another
// distance costs time, and changes no result.
class RepeatedFactor {
 public:
  RepeatedFactor(const Tensor& b, std::int64_t rows, std::int64_t a_row, std::int64_t times);
  // y += a b, without history. a: [rows, k]; y: [rows, n], its rows contiguous; both of b's dtype and device.
  void add_product_to(Tensor y, const Tensor& a) const;

 private:
  Tensor b_;  // or panels of it, [n / columns, k, columns]
};

}  // namespace levin
