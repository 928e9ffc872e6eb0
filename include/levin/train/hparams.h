// Numbers and words by name that were chosen before a run, and members that a search may set.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/export.h"
#include "levin/serialize.h"

namespace levin {

// A number, a word or a flag.
class LEVIN_API HParam {
 public:
  enum class Kind : std::uint8_t { flag, integer, real, word };
  template <std::same_as<bool> B>
  HParam(B on) : kind_(Kind::flag), number_(on) {}
  template <std::integral I>
  requires(!std::same_as<I, bool>) HParam(I n)
      : kind_(std::in_range<std::int64_t>(n) ? Kind::integer : Kind::real),
        number_(static_cast<double>(n)),
        integer_(static_cast<std::int64_t>(n)) {}
  HParam(double x) : kind_(Kind::real), number_(x) {}
  HParam(std::string word) : kind_(Kind::word), word_(std::move(word)) {}
  HParam(const char* word) : kind_(Kind::word), word_(word) {}
  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_number() const { return kind_ == Kind::integer || kind_ == Kind::real; }
  [[nodiscard]] double number() const { return number_; }          // of a flag 0 or 1, of a word 0
  [[nodiscard]] std::int64_t integer() const { return integer_; }  // with all digits; of Kind::integer alone
  [[nodiscard]] std::string as_text() const;                       // "0.1", "32", "true", the word
  friend bool operator==(const HParam&, const HParam&) = default;

 private:
  Kind kind_;
  double number_ = 0;
  std::int64_t integer_ = 0;
  std::string word_;
};
using HParams = std::vector<std::pair<std::string, HParam>>;

// For Logger::log_hparams.
[[nodiscard]] LEVIN_API Metadata to_metadata(const HParams& hparams);
// Those of a checkpoint. Throws as resuming from it does: FileError, FormatError, ConfigError for weights alone.
[[nodiscard]] LEVIN_API HParams load_hparams(const std::string& path);

// What a TrainModule tells of itself in its constructor:
//
//   explicit Net(nn::Options o, double lr) : TrainModuleOf(o), lr_(lr) {
//     save_hparams({{"lr", lr}, {"width", 16}});  // kept in checkpoints, told to loggers
//     tunable("lr", &lr_);                        // may be set by Tuner::lr_find
//   }
//
// A field is a name that has a member, a number among the hparams, or both. Where it has both, they are set together, and what
// is read is the hparam.
class LEVIN_API HasHParams {
 public:
  // Adds them; a name that comes again gets the new value.
  void save_hparams(const HParams& values);
  [[nodiscard]] const HParams& hparams() const { return hparams_; }
  // Throws ConfigError for a name that is not there, or not a number.
  [[nodiscard]] double hparam(std::string_view name) const;
  // `member` lives as long as this object. Naming it again replaces it.
  void tunable(std::string_view name, double* member);
  void tunable(std::string_view name, std::int64_t* member);
  void tunable(std::string_view name, int* member);

  [[nodiscard]] bool has_member(std::string_view name) const;
  [[nodiscard]] bool has_field(std::string_view name) const;
  // Throw ConfigError with the names of all fields for one that is not there.
  [[nodiscard]] double field(std::string_view name) const;
  void set_field(std::string_view name, double value);  // all that hold it; integers are rounded
  [[nodiscard]] std::string fields() const;             // for messages: "lr, width"; "none"

 private:
  struct Member {
    std::string name;
    double* real = nullptr;
    std::int64_t* integer = nullptr;
    int* narrow = nullptr;
  };
  void add(Member member);
  [[nodiscard]] const HParam* find(std::string_view name) const;  // a number; else null
  [[nodiscard]] const Member* member(std::string_view name) const;
  HParams hparams_;
  std::vector<Member> members_;
};

}  // namespace levin
