// Optimizers of a part of each parameter.
#include <string>
#include <utility>

#include "levin/optim.h"
#include "optim/masters.h"
#include "optim/updates.h"

namespace levin::optim {

Tensor& Optimizer::Group::source(std::size_t i) const {
  if (!pieces.empty()) return pieces[i]->values;
  return *(model.empty() ? parameters : model)[i].value;
}

std::vector<ParamRef> Optimizer::pieces() const {
  std::vector<ParamRef> all;
  for (const Group& g : groups_) {
    for (std::size_t i = 0; i < g.pieces.size(); ++i)
      all.push_back({&g.pieces[i]->values, g.model[i].name, g.model[i].owner});
  }
  return all;
}

void Optimizer::use_pieces(const Function<Piece(const ParamRef&)>& piece_of) {
  const std::string op = name();
  if (!elementwise())
    fail<ConfigError>(op, ": it updates all elements together, and can not share the update; use another optimizer");
  std::vector<std::vector<std::shared_ptr<Piece>>> pieces;
  for (const Group& g : groups_) {
    if (!g.pieces.empty()) fail<StateError>(op, ": use_pieces() is called twice");
    pieces.emplace_back();
    for (std::size_t i = 0; i < g.parameters.size(); ++i) {
      const ParamRef& given = (g.model.empty() ? g.parameters : g.model)[i];
      if (g.state[i].step != 0)
        fail<StateError>(op, ": use_pieces() is called after the first step (parameter ", given.name,
                         " has state); call it when the optimizer is made");
      auto piece = std::make_shared<Piece>(piece_of(given));
      const Tensor& values = piece->values;
      if (!values.defined() || values.rank() != 1 || !values.is_contiguous() || !is_float(values.dtype()) ||
          piece->begin < 0 || piece->begin > given.value->numel() - values.numel())
        fail<ConfigError>(op, ": the piece of parameter ", given.name, ", ", text(*given.value), ", is ",
                          values.defined() ? text(values) : "undefined", " from element ", piece->begin,
                          ", expected a contiguous part of it in one dimension");
      piece->values = values.detach();
      piece->values.requires_grad_();
      pieces.back().push_back(std::move(piece));
    }
  }
  ++layout_;
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    Group& g = groups_[k];
    if (g.model.empty()) g.model = g.parameters;
    g.pieces = std::move(pieces[k]);
    for (std::size_t i = 0; i < g.parameters.size(); ++i) g.parameters[i].value = &g.pieces[i]->values;
    g.steps = g.numbers = {};
    const auto whole = std::exchange(g.masters, {});
    if (!masters_) continue;
    Masters::make(g, memory_.get());
    // A master knows digits that the model's 16 bits have lost. Pieces count the elements of contiguous memory.
    for (std::size_t i = 0; i < whole.size(); ++i) {
      if (!whole[i] || !g.masters[i]) continue;
      Tensor& value = g.masters[i]->value;
      value = Updates::kept(
          as_strided(whole[i]->value.detach().contiguous(), value.shape(), value.strides(), g.first_element(i)).clone(),
          value.device(), memory_.get());
      value.requires_grad_();
    }
  }
}

}  // namespace levin::optim
