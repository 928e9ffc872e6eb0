// What SLURM writes about the nodes of a job, as lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin::dist {

// A whole decimal number within [0, most], without sign and blanks.
[[nodiscard]] std::optional<std::int64_t> read_count(std::string_view text, std::int64_t most = 0x7fffffff);

// The hosts of "a[5-9,12],b": names, separated by commas, in each of which brackets hold numbers and ranges. Leading
// zeros of a range's begin are kept: "n[008-010]" is n008, n009, n010. Several brackets in a name vary like an
// odometer. Nothing for a text of another form and for more than a million hosts. `most`: the hosts after the first
// `most` are left out.
[[nodiscard]] std::optional<std::vector<std::string>> slurm_hosts(std::string_view text,
                                                                  std::size_t most = std::size_t{1} << 20);

// The tasks of each node of "4(x3),2": 4, 4, 4, 2. Nothing for a text of another form.
[[nodiscard]] std::optional<std::vector<int>> slurm_tasks_per_node(std::string_view text);

}  // namespace levin::dist
