// What a process says about itself when it joins a job, and what must be equal on all ranks.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::dist {

struct Card {
  // Who it is.
  int rank = 0, local_rank = 0, node_rank = 0;
  long process = 0;
  std::string host;    // its name, for people
  std::string memory;  // equal for processes that can share memory
  // Equal on all processes of one start of a job.
  std::string run;
  int restart = 0;
  // Equal on all ranks, by name: "world 4", "program ...", lines of InitOptions::agreement.
  std::vector<std::pair<std::string, std::string>> equal;
};

// Of this process. `agreement`: lines "name value".
[[nodiscard]] Card own_card(int world, std::string_view agreement);

[[nodiscard]] std::string packed(const Card& card);
struct ReadCard {
  Card card;
  bool good = false;
};
[[nodiscard]] ReadCard read_card(std::string_view bytes);

// "rank 2 (host a, process 77)"
[[nodiscard]] std::string name_of(const Card& card);

// What the cards differ in, for people: each line with its value on the ranks. Empty: they agree. `cards` has those
// that have arrived, rank 0 among them.
[[nodiscard]] std::string differences(const std::vector<const Card*>& cards);

}  // namespace levin::dist
