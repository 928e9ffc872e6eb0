// Sums of products named by letters: parsing, then pairwise contractions by permute, reshape and matmul.
#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

#include "autograd/autocast.h"
#include "kernels/executor/dispatch.h"
#include "levin/ops.h"

namespace levin {
namespace {

// Labels: the letters 'A'..'Z', 'a'..'z' are 0..51; the dimensions of "..." are 52 and up, counted from the last.
constexpr int kOmitted = 52, kLabels = kOmitted + kMaxRank;
using Labels = std::vector<int>;

int label_of(char c) { return std::isupper(static_cast<unsigned char>(c)) ? c - 'A' : c - 'a' + 26; }
std::string label_text(int label) {
  return label >= kOmitted ? "..." : std::string(1, static_cast<char>(label < 26 ? 'A' + label : 'a' + label - 26));
}
bool has(const Labels& labels, int label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

struct Term {  // the labels of one operand as written
  Labels before, after;
  bool ellipsis = false;
};

Term parse_term(std::string_view equation, std::string_view part) {
  Term t;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (std::isalpha(static_cast<unsigned char>(part[i]))) {
      (t.ellipsis ? t.after : t.before).push_back(label_of(part[i]));
    } else if (part.substr(i, 3) == "..." && !t.ellipsis) {
      t.ellipsis = true;
      i += 2;
    } else {
      fail<ShapeError>("einsum: '", part.substr(i, 1), "' in \"", equation,
                       "\" is not a letter; expected letters and at most one \"...\" for each operand");
    }
  }
  return t;
}

struct Equation {
  std::vector<Term> inputs;
  Term output;
  bool has_output = false;
};

Equation parse(std::string_view text) {
  std::string equation;
  for (const char c : text) {
    if (c != ' ') equation += c;
  }
  Equation e;
  const std::size_t arrow = equation.find("->");
  e.has_output = arrow != std::string::npos;
  const std::string_view all = equation;
  std::string_view left = e.has_output ? all.substr(0, arrow) : all;
  for (;;) {
    const std::size_t comma = left.find(',');
    e.inputs.push_back(parse_term(text, left.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    left.remove_prefix(comma + 1);
  }
  if (e.has_output) e.output = parse_term(text, all.substr(arrow + 2));
  return e;
}

// A tensor with one label per dimension, each label once.
struct Operand {
  Tensor x;
  Labels labels;

  [[nodiscard]] int dim(int label) const {
    return static_cast<int>(std::find(labels.begin(), labels.end(), label) - labels.begin());
  }
  [[nodiscard]] std::int64_t size(int label) const { return x.shape()[dim(label)]; }
  void drop(const Labels& gone, bool by_sum) {
    if (gone.empty()) return;
    std::vector<std::int64_t> dims;
    for (const int l : gone) dims.push_back(dim(l));
    const Dims list{std::span<const std::int64_t>(dims)};
    x = by_sum ? sum(x, list) : squeeze(x, list);
    std::erase_if(labels, [&](int l) { return has(gone, l); });
  }
  // Dimensions in the order of `order`, a permutation of the labels.
  [[nodiscard]] Tensor in_order(const Labels& order) const {
    if (order == labels) return x;
    std::vector<std::int64_t> dims;
    for (const int l : order) dims.push_back(dim(l));
    return permute(x, Dims{std::span<const std::int64_t>(dims)});
  }
};

Operand label(std::string_view equation, std::size_t index, const Term& term, Tensor x) {
  const int named = static_cast<int>(term.before.size() + term.after.size());
  if (term.ellipsis ? x.rank() < named : x.rank() != named) {
    fail<ShapeError>("einsum: operand ", index, " has shape ", x.shape(), ", but \"", equation, "\" names ",
                     term.ellipsis ? "at least " : "", named, " dimensions of it");
  }
  Operand o{std::move(x), {}};
  o.labels = term.before;
  if (term.ellipsis) {
    for (int d = o.x.rank() - named; d-- > 0;) o.labels.push_back(kOmitted + d);
  }
  o.labels.insert(o.labels.end(), term.after.begin(), term.after.end());
  // A repeated label is a diagonal, which becomes the last dimension.
  for (std::size_t i = 0; i < o.labels.size(); ++i) {
    for (std::size_t j = i + 1; j < o.labels.size(); ++j) {
      if (o.labels[i] != o.labels[j]) continue;
      const int l = o.labels[i], di = static_cast<int>(i), dj = static_cast<int>(j);
      if (o.x.shape()[di] != o.x.shape()[dj]) {
        fail<ShapeError>("einsum: \"", label_text(l), "\" names dimensions of sizes ", o.x.shape()[di], " and ",
                         o.x.shape()[dj], " of operand ", index, "; a diagonal needs equal sizes");
      }
      o.x = diagonal(o.x, 0, di, dj);
      o.labels.erase(o.labels.begin() + dj);
      o.labels.erase(o.labels.begin() + di);
      o.labels.push_back(l);
      i = static_cast<std::size_t>(-1);  // from the start: positions have changed
      break;
    }
  }
  return o;
}

std::int64_t product(const Operand& o, const Labels& labels) {
  std::int64_t n = 1;
  for (const int l : labels) n *= o.size(l);
  return n;
}
Labels join(std::initializer_list<const Labels*> parts) {
  Labels all;
  for (const Labels* p : parts) all.insert(all.end(), p->begin(), p->end());
  return all;
}

// The product of two operands, summed over the labels that no later operand or the result has.
Operand contract(Operand a, Operand b, const Labels& needed) {
  // Size 1 broadcasts: the operand drops a dimension of size 1 where the other operand has more.
  Labels from_a, from_b;
  for (const int l : a.labels) {
    if (!has(b.labels, l) || a.size(l) == b.size(l)) continue;
    (a.size(l) == 1 ? from_a : from_b).push_back(l);
  }
  a.drop(from_a, false);
  b.drop(from_b, false);
  Labels alone_a, alone_b;
  for (const int l : a.labels) {
    if (!has(b.labels, l) && !has(needed, l)) alone_a.push_back(l);
  }
  for (const int l : b.labels) {
    if (!has(a.labels, l) && !has(needed, l)) alone_b.push_back(l);
  }
  a.drop(alone_a, true);
  b.drop(alone_b, true);

  Labels batch, summed, rows, cols;
  for (const int l : a.labels) (!has(b.labels, l) ? rows : has(needed, l) ? batch : summed).push_back(l);
  for (const int l : b.labels) {
    if (!has(a.labels, l)) cols.push_back(l);
  }
  const Tensor left =
      reshape(a.in_order(join({&batch, &rows, &summed})), {product(a, batch), product(a, rows), product(a, summed)});
  const Tensor right =
      reshape(b.in_order(join({&batch, &summed, &cols})), {product(b, batch), product(b, summed), product(b, cols)});
  Operand out{{}, join({&batch, &rows, &cols})};
  std::vector<std::int64_t> sizes;
  for (const int l : batch) sizes.push_back(a.size(l));
  for (const int l : rows) sizes.push_back(a.size(l));
  for (const int l : cols) sizes.push_back(b.size(l));
  out.x = reshape(matmul(left, right), Dims{std::span<const std::int64_t>(sizes)});
  return out;
}

}  // namespace

Tensor einsum(std::string_view equation, std::span<const Tensor> operands) {
  const Equation e = parse(equation);
  if (operands.size() != e.inputs.size() || operands.empty()) {
    fail<ShapeError>("einsum: \"", equation, "\" names ", e.inputs.size(), " operands, ", operands.size(),
                     " are given");
  }
  std::vector<Operand> all;
  for (std::size_t i = 0; i < operands.size(); ++i) all.push_back(label(equation, i, e.inputs[i], operands[i]));
  if (!is_float(operands[0].dtype())) fail_unsupported({.name = "einsum"}, operands[0], kFloats);
  for (const Tensor& x : operands) {
    check_dtypes_meet("einsum", operands[0], x);
    check_same_device("einsum", operands[0], x);
  }

  std::array<std::int64_t, kLabels> size{};
  size.fill(-1);
  std::array<int, kLabels> uses{};
  for (const Operand& o : all) {
    for (const int l : o.labels) {
      auto& s = size[static_cast<std::size_t>(l)];
      const std::int64_t n = o.size(l);
      if (s >= 0 && s != n && s != 1 && n != 1) {
        fail<ShapeError>("einsum: \"", label_text(l), "\" in \"", equation, "\" is ", s, " in one operand and ", n,
                         " in another, expected one size, or 1");
      }
      if (s < 0 || s == 1) s = n;
    }
  }
  for (const Term& t : e.inputs) {
    for (const Labels* part : {&t.before, &t.after}) {
      for (const int l : *part) ++uses[static_cast<std::size_t>(l)];
    }
  }
  Labels ellipsis;
  for (int l = kLabels; l-- > kOmitted;) {
    if (size[static_cast<std::size_t>(l)] >= 0) ellipsis.push_back(l);
  }

  Labels output;
  if (e.has_output) {
    output = e.output.before;
    if (e.output.ellipsis) output.insert(output.end(), ellipsis.begin(), ellipsis.end());
    output.insert(output.end(), e.output.after.begin(), e.output.after.end());
    for (std::size_t i = 0; i < output.size(); ++i) {
      if (size[static_cast<std::size_t>(output[i])] < 0) {
        fail<ShapeError>("einsum: \"", label_text(output[i]), "\" is in the result of \"", equation,
                         "\" but in no operand");
      }
      if (std::find(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(i), output[i]) !=
          output.begin() + static_cast<std::ptrdiff_t>(i)) {
        fail<ShapeError>("einsum: \"", label_text(output[i]), "\" is twice in the result of \"", equation, "\"");
      }
    }
  } else {  // the dimensions of "...", then the letters that appear once, in alphabetical order
    output = ellipsis;
    for (int l = 0; l < kOmitted; ++l) {
      if (uses[static_cast<std::size_t>(l)] == 1) output.push_back(l);
    }
  }

  Operand result = std::move(all[0]);
  for (std::size_t i = 1; i < all.size(); ++i) {
    Labels needed = output;
    for (std::size_t later = i + 1; later < all.size(); ++later) {
      needed.insert(needed.end(), all[later].labels.begin(), all[later].labels.end());
    }
    result = contract(std::move(result), std::move(all[i]), needed);
  }
  Labels rest;
  for (const int l : result.labels) {
    if (!has(output, l)) rest.push_back(l);
  }
  result.drop(rest, true);
  return result.in_order(output);
}

}  // namespace levin
