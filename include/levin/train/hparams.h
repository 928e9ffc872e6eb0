// Hyper-parameters: values by name that were chosen before a run, and members that the tuner may set.
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

// The value of one hyper-parameter: a number, a word or a flag.
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

// As text, for Logger::log_hparams.
[[nodiscard]] LEVIN_API Metadata to_metadata(const HParams& hparams);
// The hparams that a checkpoint keeps. Throws FileError, FormatError, and ConfigError for a file of weights alone.
[[nodiscard]] LEVIN_API HParams load_hparams(const std::string& path);

// The hyper-parameters of a TrainModule or DataModule, which its constructor declares:
//
//   explicit Net(nn::Options o, double lr) : TrainModuleOf(o), lr_(lr) {
//     save_hparams({{"lr", lr}, {"width", 16}});  // kept in checkpoints, passed to loggers
//     tunable("lr", &lr_);                        // Tuner::lr_find may set it
//   }
//
// A field is a name with a member, with a number among the hparams, or with both. set_field sets both; field returns
// the hparam.
class LEVIN_API HasHParams {
 public:
  // Adds the values; a known name gets the new value.
  void save_hparams(const HParams& values);
  [[nodiscard]] const HParams& hparams() const { return hparams_; }
  // The number of this name. Throws ConfigError if there is none.
  [[nodiscard]] double hparam(std::string_view name) const;
  // Declares a member that the tuner may set. It lives as long as this object. A known name gets the new member.
  void tunable(std::string_view name, double* member);
  void tunable(std::string_view name, std::int64_t* member);
  void tunable(std::string_view name, int* member);

  [[nodiscard]] bool has_member(std::string_view name) const;
  [[nodiscard]] bool has_field(std::string_view name) const;
  // Throw ConfigError for an unknown name, with the names of all fields.
  [[nodiscard]] double field(std::string_view name) const;
  void set_field(std::string_view name, double value);  // member and hparam; integers are rounded
  [[nodiscard]] std::string fields() const;             // the names, for messages: "lr, width"; "none"

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
