// Tables of numbers as text: a row a line, columns separated by commas, spaces or tabs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/files/file.h"

namespace levin::gnn {

template <class T>
struct Table {
  std::string file;  // for messages
  std::int64_t rows = 0, columns = 0;
  std::vector<T> values{};  // row by row
  [[nodiscard]] T at(std::int64_t row, std::int64_t column = 0) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};

// The last line may lack its end; lines of spaces may follow it. Throws FormatError with the line for text that is no
// number, a number out of range, an infinity or NaN, an empty line, and a line with another number of columns.
// T: std::int64_t or float.
template <class T>
[[nodiscard]] Table<T> read_table(levin::detail::Source& source);

}  // namespace levin::gnn
