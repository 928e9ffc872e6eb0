#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/loader_fixture_test.h"
#include "levin/levin.h"

using namespace levin;
using data::CombineMode;
using data::DataLoader;

namespace {

using Places = std::vector<std::string>;

// Sample i is i; `first` is added, to tell parts apart.
DataLoader counting(std::int64_t n, std::int64_t first = 0, bool shuffle = false, int workers = 0) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(static_cast<float>(first + i));
  return DataLoader(data::tensor_dataset({from_data<float>(x, {n}, Device::cpu())}),
                    {.shuffle = shuffle, .num_workers = workers, .generator = Generator(3)});
}

// Each batch as "a:1 b:11", an ended part as "b:-".
Places places(DataLoader& loader) {
  Places out;
  for (const Batch& b : loader) {
    std::string words;
    for (std::size_t k = 0; k < b.parts.size(); ++k) {
      words += (k ? " " : "") + b.parts[k].name + ":";
      words += b.part(k).empty() ? "-" : std::to_string(static_cast<int>(b.part(k)[0].item()));
    }
    out.push_back(words);
  }
  return out;
}

}  // namespace

TEST_CASE(
    "combined loaders: the longest with the others begun anew, the shortest, the longest with empty parts, one by "
    "one") {
  DataLoader a = counting(5), b = counting(2, 10);
  const auto combined = [&](CombineMode mode) { return data::combine({{"a", &a}, {"b", &b}}, mode); };
  DataLoader cycle = combined(CombineMode::max_size_cycle), least = combined(CombineMode::min_size),
             most = combined(CombineMode::max_size), turns = combined(CombineMode::sequential);
  CHECK(cycle.size() == 5);
  CHECK(places(cycle) == Places{"a:0 b:10", "a:1 b:11", "a:2 b:10", "a:3 b:11", "a:4 b:10"});
  CHECK(places(cycle).size() == 5);  // the next epoch starts both again
  CHECK(least.size() == 2);
  CHECK(places(least) == Places{"a:0 b:10", "a:1 b:11"});
  CHECK(most.size() == 5);
  CHECK(places(most) == Places{"a:0 b:10", "a:1 b:11", "a:2 b:-", "a:3 b:-", "a:4 b:-"});
  CHECK(turns.size() == 7);
  CHECK(places(turns) == Places{"a:0 b:-", "a:1 b:-", "a:2 b:-", "a:3 b:-", "a:4 b:-", "a:- b:10", "a:- b:11"});
}

TEST_CASE("a combined batch holds the fields of all parts, and names tell whose they are") {
  DataLoader a = counting(4), b = counting(2, 10);
  DataLoader both = data::combine({{"a", &a}, {"b", &b}});
  for (const Batch& batch : both) {
    CHECK(batch.fields.size() == 2);
    CHECK(batch.part("b")[0].shares_storage(batch[1]));
    CHECK(batch.size() == 1);
    CHECK(batch.indices == batch.parts[0].indices);
    CHECK_THROWS_AS((void)batch.part("c"), IndexError);
    CHECK_THROWS_AS((void)batch.part(2), IndexError);
  }
  CHECK_THROWS_AS((void)Batch{}.part(0), IndexError);
  CHECK(both.parts() == 2);
  CHECK(both.part_name(1) == "b");
  CHECK(both.dataset() == a.dataset());
  CHECK_FALSE(both.shuffles());
  DataLoader mixed = counting(4, 0, true);
  CHECK(data::combine({{"a", &a}, {"m", &mixed}}).shuffles());
}

TEST_CASE(
    "a part that begins anew has another order, and a combination begun at any batch gives the rest, with workers "
    "too") {
  for (const int workers : {0, 2}) {
    CAPTURE(workers);
    DataLoader a = counting(9, 0, true, workers), b = counting(4, 100, true, workers), c = counting(1, 200);
    DataLoader all = data::combine({{"a", &a}, {"b", &b}, {"c", &c}});
    std::vector<Places> epochs;
    for (int e = 0; e < 3; ++e) epochs.push_back(places(all));
    CHECK(epochs[0] != epochs[1]);
    std::set<std::string> orders;  // that b's whole passes had, two an epoch
    for (const Places& epoch : epochs) {
      for (const std::size_t from : {0, 4}) {
        std::string words;
        for (std::size_t k = from; k < from + 4; ++k) words += epoch[k].substr(epoch[k].find("b:"));
        orders.insert(words);
      }
    }
    CHECK(orders.size() >= 4);  // six drawn of 24: two may well be alike
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      for (std::int64_t batch = 0; batch <= 9; ++batch) {
        DataLoader a2 = counting(9, 0, true), b2 = counting(4, 100, true), c2 = counting(1, 200);
        DataLoader rest = data::combine({{"a", &a2}, {"b", &b2}, {"c", &c2}});
        rest.load_state({.epoch = epoch, .batch = batch});
        const Places& whole = epochs[static_cast<std::size_t>(epoch)];
        CHECK(places(rest) == Places(whole.begin() + batch, whole.end()));
        CHECK(rest.state().epoch == epoch + 1);
      }
    }
  }
}

TEST_CASE("a combination that is read in sequence reads its parts so") {
  DataLoader a = counting(3, 0, true), b = counting(2, 10, true);
  DataLoader both = data::combine({{"a", &a}, {"b", &b}});
  both.load_state({.epoch = 4, .in_sequence = true});
  CHECK(places(both) == Places{"a:0 b:10", "a:1 b:11", "a:2 b:10"});
}

TEST_CASE("a combination holds its loaders, goes through trees of them, and refuses what has no meaning") {
  const auto tree = [] {
    DataLoader a = counting(2), b = counting(2, 10), c = counting(2, 20);
    DataLoader inner = data::combine({{"x", &a}, {"y", &b}});
    return data::combine({{"in", &inner}, {"c", &c}});
  };
  DataLoader outlives = tree();
  CHECK(places(outlives) == Places{"in.x:0 in.y:10 c:20", "in.x:1 in.y:11 c:21"});

  DataLoader a = counting(3), none = counting(1), other = counting(2);
  DataLoader unordered(a.dataset(), {.num_workers = 1, .in_order = false});
  DataLoader empty(a.dataset(), {.batch_size = 5, .drop_last = true});
  DataLoader shortest = data::combine({{"a", &a}, {"o", &other}}, CombineMode::min_size);
  using Parts = std::vector<data::NamedLoader>;
  const std::pair<Parts, const char*> refused[] = {
      {{}, "no loaders"},
      {{{"a", nullptr}}, "\"a\" is null"},
      {{{"a", &a}, {"a", &other}}, "two loaders are named \"a\""},
      {{{"a", &a}, {"u", &unordered}}, "in_order = false"},
      {{{"a", &a}, {"e", &empty}}, "\"e\" has no batches"},
      {{{"s", &shortest}}, "combined by min_size and the whole by max_size_cycle"},
  };
  for (const auto& [parts, words] : refused)
    CHECK_THROWS_WITH_AS((void)data::combine(parts), doctest::Contains(words), ConfigError);
  DataLoader with_empty = data::combine({{"a", &a}, {"e", &empty}}, CombineMode::max_size);
  CHECK(places(with_empty) == Places{"a:0 e:-", "a:1 e:-", "a:2 e:-"});
  CHECK_THROWS_AS(with_empty.load_state({.epoch = 0, .batch = 1, .ahead = {2}}), StateError);
  CHECK_THROWS_AS(with_empty.load_state({.epoch = 0, .batch = 4}), StateError);
}

TEST_CASE("an error in a part names it, and leaving a loop early leaves all parts free") {
  DataLoader a = counting(6);
  DataLoader bad(data::transform(a.dataset(),
                                 [](data::Sample s, Generator&) {
                                   if (s[0].item() == 2) fail<DataError>("planted");
                                   return s;
                                 }),
                 {});
  DataLoader both = data::combine({{"good", &a}, {"bad", &bad}});
  CHECK_THROWS_WITH_AS((void)places(both), doctest::Contains("part \"bad\""), DataError);
  for (const Batch& b : both) {
    CHECK(b.position == 0);
    break;
  }
  CHECK(places(a).size() == 6);
  DataLoader again = data::combine(std::array{&a, &bad}, CombineMode::min_size);
  CHECK(again.part_name(1) == "1");
}
