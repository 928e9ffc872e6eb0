#include <cstring>

#include "levin/data/readers.h"

namespace levin::data {

DatasetRef csv_dataset(const CsvTable& table, const std::vector<std::vector<std::string>>& fields) {
  Tensors joined;
  for (const auto& names : fields) {
    if (names.empty()) fail<ConfigError>("csv_dataset: a field has no columns");
    const Tensor& first = table[names[0]];
    if (names.size() == 1) {
      joined.push_back(first);
      continue;
    }
    const std::int64_t rows = first.numel(), count = static_cast<std::int64_t>(names.size());
    Tensor field = empty({rows, count}, Device::cpu(), first.dtype());
    const std::size_t width = itemsize(first.dtype());
    std::byte* const to = field.get().storage->data;
    for (std::size_t k = 0; k < names.size(); ++k) {
      const Tensor column = table[names[k]].contiguous();
      if (column.dtype() != first.dtype()) {
        fail<DTypeError>("csv_dataset: column '", names[k], "' is ", column.dtype(), " and column '", names[0], "' ",
                         first.dtype(), ", expected one dtype in a field");
      }
      if (column.numel() != rows) {
        fail<DataError>("csv_dataset: column '", names[k], "' has ", column.numel(), " rows and column '", names[0],
                        "' ", rows);
      }
      const std::byte* from = column.get().storage->data + static_cast<std::size_t>(column.offset()) * width;
      for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
        std::memcpy(to + (i * names.size() + k) * width, from + i * width, width);
      }
    }
    joined.push_back(std::move(field));
  }
  return tensor_dataset(std::move(joined));
}

}  // namespace levin::data
