#include <algorithm>
#include <cmath>

#include "levin/train.h"
#include "train/checkpoint/content.h"

namespace levin {

std::string HParam::as_text() const {
  switch (kind_) {
    case Kind::flag: return text(number_ != 0);
    case Kind::integer: return text(integer_);
    case Kind::real: return text(number_);
    case Kind::word: return word_;
  }
  return {};
}

Metadata to_metadata(const HParams& hparams) {
  Metadata out;
  for (const auto& [name, value] : hparams) out.emplace_back(name, value.as_text());
  return out;
}

HParams load_hparams(const std::string& path) { return train::read_checkpoint(path).hparams; }

void HasHParams::save_hparams(const HParams& values) {
  for (const auto& [name, value] : values) {
    const std::string& key = name;
    const auto known = std::find_if(hparams_.begin(), hparams_.end(), [&](const auto& h) { return h.first == key; });
    if (known == hparams_.end())
      hparams_.emplace_back(name, value);
    else
      known->second = value;
  }
}

const HParam* HasHParams::find(std::string_view name) const {
  for (const auto& [key, value] : hparams_) {
    if (key == name && value.is_number()) return &value;
  }
  return nullptr;
}
const HasHParams::Member* HasHParams::member(std::string_view name) const {
  const auto it = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.name == name; });
  return it == members_.end() ? nullptr : &*it;
}

double HasHParams::hparam(std::string_view name) const {
  const HParam* h = find(name);
  if (!h)
    fail<ConfigError>("hparam: \"", name,
                      "\" is no number among the hparams; name it in save_hparams; known fields are: ", fields());
  return h->number();
}

void HasHParams::add(Member member) {
  std::erase_if(members_, [&](const Member& m) { return m.name == member.name; });
  members_.push_back(std::move(member));
}
void HasHParams::tunable(std::string_view name, double* m) { add({.name = std::string(name), .real = m}); }
void HasHParams::tunable(std::string_view name, std::int64_t* m) { add({.name = std::string(name), .integer = m}); }
void HasHParams::tunable(std::string_view name, int* m) { add({.name = std::string(name), .narrow = m}); }

bool HasHParams::has_member(std::string_view name) const { return member(name) != nullptr; }
bool HasHParams::has_field(std::string_view name) const { return find(name) || member(name); }

std::string HasHParams::fields() const {
  std::string all;
  const auto list = [&](const std::string& name) { all += (all.empty() ? "" : ", ") + name; };
  for (const Member& m : members_) list(m.name);
  for (const auto& [name, value] : hparams_) {
    if (value.is_number() && !member(name)) list(name);
  }
  return all.empty() ? "none" : all;
}

double HasHParams::field(std::string_view name) const {
  if (const HParam* h = find(name)) return h->number();
  const Member* m = member(name);
  if (!m)
    fail<ConfigError>("field: the module has no \"", name, "\", it has: ", fields(),
                      "; register it by tunable or save_hparams in the constructor");
  return m->real ? *m->real : m->integer ? static_cast<double>(*m->integer) : *m->narrow;
}

void HasHParams::set_field(std::string_view name, double value) {
  (void)field(name);
  for (auto& [key, held] : hparams_) {
    if (key == name && held.kind() == HParam::Kind::integer) held = static_cast<std::int64_t>(std::llround(value));
    if (key == name && held.kind() == HParam::Kind::real) held = value;
  }
  const Member* m = member(name);
  if (!m) return;
  if (m->real) *m->real = value;
  if (m->integer) *m->integer = std::llround(value);
  if (m->narrow) *m->narrow = static_cast<int>(std::llround(value));
}

}  // namespace levin
