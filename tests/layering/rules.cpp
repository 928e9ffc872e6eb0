#include "tests/layering/rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <regex>
#include <span>

namespace levin::layering {
namespace {

using std::string;
using std::string_view;

bool starts(string_view text, string_view prefix) { return text.substr(0, prefix.size()) == prefix; }
bool ends(string_view text, string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}
bool is_header(string_view path) { return ends(path, ".h") || ends(path, ".cuh"); }
// Tests beside their sources follow the rules of tests/: they may include everything.
bool is_test(string_view path) { return starts(path, "tests/") || ends(path, "_test.cpp") || ends(path, "_test.h"); }

enum class Layer { tensor, kernels, comm, autograd, nn, optim, data, train, programs, tests };

// ---- The table: the layers that each row's layer may include. Each may include itself.
struct Row {
  Layer layer;
  std::vector<Layer> below;
};
const std::array<Row, 8>& rows() {
  using enum Layer;
  static const std::array<Row, 8> table{{
      {tensor, {}},
      {kernels, {tensor}},
      {comm, {tensor}},
      {autograd, {kernels, tensor}},
      {nn, {autograd, tensor}},
      {optim, {kernels, tensor}},
      {data, {tensor}},
      {train, {nn, optim, data, autograd, comm, kernels, tensor}},
  }};
  return table;
}

// The layer of each public header, by the first word of its name: include/levin/nn.h and include/levin/nn/conv.h belong
// to nn.
struct Face {
  string_view name;
  Layer layer;
};
constexpr Face kFaces[] = {
    {"export", Layer::tensor},
    {"error", Layer::tensor},
    {"dtype", Layer::tensor},
    {"device", Layer::tensor},
    {"shape", Layer::tensor},
    {"tensor", Layer::tensor},
    {"generator", Layer::tensor},
    {"graph", Layer::tensor},
    {"graph_edges", Layer::tensor},
    {"image", Layer::tensor},
    {"memory", Layer::tensor},
    {"function", Layer::tensor},
    {"stream", Layer::tensor},
    {"op_info", Layer::tensor},
    {"serialize", Layer::tensor},
    {"warning", Layer::tensor},
    {"sync", Layer::tensor},
    {"comm", Layer::comm},
    {"extend", Layer::autograd},
    {"augment", Layer::autograd},
    {"distributions", Layer::autograd},
    {"autograd", Layer::autograd},
    {"index_ops", Layer::autograd},
    {"layer_ops", Layer::autograd},
    {"losses", Layer::autograd},
    {"ops", Layer::autograd},
    {"linalg", Layer::autograd},
    {"pointwise_ops", Layer::autograd},
    {"build_info", Layer::autograd},
    {"sparse", Layer::autograd},
    {"live_graph", Layer::autograd},
    {"flops", Layer::autograd},
    {"engines", Layer::kernels},
    // Of whole layers.
    {"nn", Layer::nn},
    {"optim", Layer::optim},
    {"data", Layer::data},
    {"train", Layer::train},
    {"levin", Layer::programs},
};

// The standard headers that a public header may include, all cheap to parse (no <functional>, <iostream>, <ranges>).
constexpr string_view kPublicStd[] = {
    "array",  "atomic",      "bit",    "compare",     "concepts", "cstddef",         "cstdint", "initializer_list",
    "iosfwd", "limits",      "memory", "new",         "optional", "source_location", "span",    "stdexcept",
    "string", "string_view", "tuple",  "type_traits", "typeinfo", "utility",         "vector",
};

constexpr string_view kStd[] = {
    "algorithm",       "any",           "array",
    "atomic",          "barrier",       "bit",
    "bitset",          "cctype",        "cerrno",
    "cfenv",           "cfloat",        "charconv",
    "chrono",          "cinttypes",     "climits",
    "clocale",         "cmath",         "compare",
    "complex",         "concepts",      "condition_variable",
    "csetjmp",         "csignal",       "cstdarg",
    "cstddef",         "cstdint",       "cstdio",
    "cstdlib",         "cstring",       "ctime",
    "deque",           "exception",     "execution",
    "filesystem",      "forward_list",  "fstream",
    "functional",      "future",        "initializer_list",
    "iomanip",         "ios",           "iosfwd",
    "iostream",        "istream",       "iterator",
    "latch",           "limits",        "list",
    "locale",          "map",           "memory",
    "memory_resource", "mutex",         "new",
    "numbers",         "numeric",       "optional",
    "ostream",         "queue",         "random",
    "ranges",          "ratio",         "regex",
    "semaphore",       "set",           "shared_mutex",
    "source_location", "span",          "sstream",
    "stack",           "stdexcept",     "stop_token",
    "streambuf",       "string",        "string_view",
    "system_error",    "thread",        "tuple",
    "type_traits",     "typeindex",     "typeinfo",
    "unordered_map",   "unordered_set", "utility",
    "valarray",        "variant",       "vector",
    "version",
};

// The operating system's and the compiler's own headers: in sources and internal headers, never in public ones.
constexpr string_view kSystem[] = {
    "arpa/inet.h", "cpuid.h",    "cxxabi.h", "dirent.h", "dlfcn.h", "execinfo.h", "fcntl.h",    "immintrin.h",
    "linux/",      "math.h",     "netdb.h",  "netinet/", "poll.h",  "pthread.h",  "pwd.h",      "regex.h",
    "sched.h",     "sanitizer/", "signal.h", "spawn.h",  "sys/",    "termios.h",  "ucontext.h", "unistd.h",
};

// Third-party headers by prefix, and the only places that may include them.
struct Vendor {
  string_view prefix;
  std::vector<string_view> places;  // prefixes of paths
};
const std::vector<Vendor>& vendors() {
  static const std::vector<Vendor> table = {
      {"Eigen/", {}},
      {"cublas", {"kernels/lib/", "kernels/gemm/cublas.cpp"}},
      {"cudnn", {"kernels/lib/"}},
      {"nccl", {"comm/group/nccl"}},
      {"gloo/", {"comm/group/gloo"}},
      {"openssl/", {"comm/job/secret.cpp"}},
      {"tbb/", {"kernels/lib/", "data/graph/", "data/loader", "data/readers/cifar.cpp"}},
      {"oneapi/tbb", {"kernels/lib/", "data/graph/", "data/loader", "data/readers/cifar.cpp"}},
      {"fmt/", {"tensor/text/text.cpp", "tensor/errors/error.cpp"}},
      {"nlohmann/", {"tensor/files/safetensors.cpp", "train/checkpoint/json.cpp", "examples/", "bench/"}},
      {"xxhash.h", {"tensor/files/hash.cpp"}},
      {"zlib.h", {"data/"}},
      {"png.h", {"data/"}},
      {"jpeglib.h", {"data/readers/jpeg.cpp"}},
      {"jerror.h", {"data/readers/jpeg.cpp"}},
      {"lzma.h", {"data/readers/unxz.cpp"}},
      {"CLI/", {"examples/", "bench/"}},
      {"benchmark/", {"bench/"}},
      {"doctest/", {}},  // {}: only in tests
      {"cuda", {"tensor/", "kernels/"}},
      {"nv", {"kernels/", "tensor/device/ranges.cpp"}},
      {"vector_", {"kernels/simt/"}},  // CUDA's vector types
      {"curand", {}},
  };
  return table;
}

bool listed(std::span<const string_view> list, string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

string first_word(string_view path) {  // "nn/conv.h" and "nn.h" -> "nn"
  return string(path.substr(0, path.find_first_of("/.")));
}

// The layer of a file, by its path from the source root; nothing for a place outside of the layout.
std::optional<Layer> layer_of(string_view path) {
  if (is_test(path)) return Layer::tests;
  if (starts(path, "include/levin/")) {
    const string word = first_word(path.substr(sizeof("include/levin/") - 1));
    for (const Face& face : kFaces) {
      if (face.name == word) return face.layer;
    }
    return std::nullopt;
  }
  if (starts(path, "examples/") || starts(path, "bench/")) return Layer::programs;
  const string folder = first_word(path);
  constexpr Face kFolders[] = {
      {"tensor", Layer::tensor}, {"kernels", Layer::kernels}, {"autograd", Layer::autograd}, {"nn", Layer::nn},
      {"optim", Layer::optim},   {"data", Layer::data},       {"comm", Layer::comm},         {"train", Layer::train},
  };
  if (path.find('/') == string_view::npos) return std::nullopt;
  for (const Face& known : kFolders) {
    if (known.name == folder) return known.layer;
  }
  return std::nullopt;
}

bool allowed(Layer from, Layer to, string_view target) {
  if (from == to || from == Layer::programs) return to != Layer::tests;
  const auto& table = rows();
  const auto row = std::find_if(table.begin(), table.end(), [&](const Row& r) { return r.layer == from; });
  if (row == table.end() || std::find(row->below.begin(), row->below.end(), to) == row->below.end()) {
    // SyncBatchNorm takes a process group: nn may include that header, not its implementation.
    return from == Layer::nn && target == "include/levin/comm.h";
  }
  // Of nn's internal headers the trainer may include the module tree alone, of those of kernels/ none; public headers
  // are open.
  if (from == Layer::train && (to == Layer::nn || to == Layer::kernels))
    return starts(target, "include/levin/") || target == "nn/module.h";
  return true;
}

void check_outside(const string& path, const Include& include, std::vector<string>& out) {
  const string where = path + ":" + std::to_string(include.line) + ": ";
  const string& name = include.name;
  const bool is_public = starts(path, "include/levin/");
  if (is_public) {
    if (!listed(kPublicStd, name)) {
      out.push_back(where + "a public header includes <" + name + ">; it may include levin/ and " +
                    std::to_string(std::size(kPublicStd)) + " cheap standard headers");
    }
    return;
  }
  if (is_test(path) || listed(kStd, name)) return;
  for (const string_view system : kSystem) {
    if (ends(system, "/") ? starts(name, system) : name == system) return;
  }
  for (const Vendor& vendor : vendors()) {
    if (!starts(name, vendor.prefix)) continue;
    for (const string_view place : vendor.places) {
      if (starts(path, place)) return;
    }
    out.push_back(where + "<" + name + "> does not belong here");
    return;
  }
  out.push_back(where + "<" + name + "> is in no table of tests/layering/rules.cpp");
}

void check_inside(const string& path, Layer from, const Include& include, std::vector<string>& out) {
  const string where = path + ":" + std::to_string(include.line) + ": ";
  if (starts(include.name, ".") || include.name.find("/../") != string::npos) {
    out.push_back(where + "\"" + include.name + "\" is a relative path; write it from the source root");
    return;
  }
  const string target = starts(include.name, "levin/") ? "include/" + include.name : include.name;
  const bool is_public = starts(path, "include/levin/");
  if (is_public && !starts(target, "include/levin/")) {
    out.push_back(where + "a public header includes the internal \"" + include.name + "\"");
    return;
  }
  if (from == Layer::tests) return;
  const auto to = layer_of(target);
  if (!to) {
    out.push_back(where + "\"" + include.name + "\" is in no layer");
  } else if (!allowed(from, *to, target)) {
    out.push_back(where + "\"" + include.name + "\" points up or across the layers");
  }
}

int line_of(string_view text, std::size_t at) {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The name of the struct whose braces enclose `at`.
string enclosing_struct(const string& code, std::size_t at) {
  int closed = 0;
  while (at-- > 0) {
    if (code[at] == '}') ++closed;
    if (code[at] == '{' && closed-- == 0) break;
  }
  const std::size_t head = at == string::npos ? string::npos : code.rfind("struct", at);
  if (head == string::npos) return "";
  std::smatch match;
  const string declaration = code.substr(head, at - head);
  return std::regex_search(declaration, match, std::regex(R"(^struct\s+(\w+))")) ? match[1].str() : string();
}

// Macros that declare ops, replaced by their bodies with the first parameter filled in; line numbers stay.
string expanded(string code) {
  static const std::regex kDefine(R"re(#[ \t]*define[ \t]+(LEVIN_\w+)\((\w+)[^)]*\)((?:[^\n]*\\\n)*[^\n]*\n))re");
  for (std::smatch define; std::regex_search(code, define, kDefine);) {
    const string macro = define[1], parameter = define[2];
    string body = define[3];
    std::replace(body.begin(), body.end(), '\\', ' ');
    std::replace(body.begin(), body.end(), '\n', ' ');
    const auto at = static_cast<std::size_t>(define.position()), length = static_cast<std::size_t>(define.length());
    for (std::size_t i = at; i < at + length; ++i) code[i] = code[i] == '\n' ? '\n' : ' ';
    const std::regex use("\\b" + macro + R"(\s*\(\s*(\w+))"), word("\\b" + parameter + "\\b");
    string out;
    auto rest = code.cbegin();
    for (std::smatch call; std::regex_search(rest, code.cend(), call, use); rest = call.suffix().first) {
      out += call.prefix().str() + std::regex_replace(body, word, call[1].str()) + ";(";
    }
    code = out + string(rest, code.cend());
  }
  return code;
}

// `./run test --device NAME` chooses tests by their names, so the name of a test that needs a device says so.
template <class Report>
void check_device_names(const string& text, const Report& report) {
  constexpr string_view kHead = "\nTEST_CASE(", kNeeds[] = {"DEVICE_OR_SKIP()", "\"no device that launches kernels"};
  for (std::size_t at = text.find(kHead); at != string::npos;) {
    const std::size_t next = text.find(kHead, at + 1), open = text.find(") {\n", at);
    const string name = text.substr(at, open - at), body = text.substr(at, next - at);
    const bool needs = std::any_of(std::begin(kNeeds), std::end(kNeeds),
                                   [&](string_view word) { return body.find(word) != string::npos; });
    if (needs && name.find("device") == string::npos && name.find("simt") == string::npos) {
      report(line_of(text, at + 1), "a test that needs a device has no \"device\" or \"simt\" in its name");
    }
    at = next;
  }
}

// One pass over C++ text: blanks comments, and the contents of literals when asked.
string blanked(string_view text, bool literals) {
  string out(text);
  const auto blank = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end && i < out.size(); ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  std::size_t i = 0;
  while (i < text.size()) {
    const string_view rest = text.substr(i);
    if (starts(rest, "//") || starts(rest, "/*")) {
      const bool line = rest[1] == '/';
      std::size_t end = text.find(line ? "\n" : "*/", i + 2);
      end = end == string_view::npos ? text.size() : end + (line ? 0 : 2);
      blank(i, end);
      i = end;
    } else if (starts(rest, "R\"") && (i == 0 || !is_word(text[i - 1]))) {
      const std::size_t open = text.find('(', i);
      const string close = ")" + string(text.substr(i + 2, open - i - 2)) + "\"";
      std::size_t end = text.find(close, open);
      end = end == string_view::npos ? text.size() : end;
      if (literals) blank(open + 1, end);
      i = end + close.size();
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !is_word(text[i - 1])))) {
      std::size_t end = i + 1;
      while (end < text.size() && text[end] != text[i] && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      if (literals) blank(i + 1, end);
      i = end + 1;
    } else {
      ++i;
    }
  }
  return out;
}

}  // namespace

string without_comments(string_view text) { return blanked(text, false); }
string without_strings(string_view text) { return blanked(text, true); }

std::vector<Include> includes_of(string_view text) {
  static const std::regex kInclude(R"re(^[ \t]*#[ \t]*include[ \t]*(<([^>]*)>|"([^"]*)"|[^ \t].*))re");
  std::vector<Include> found;
  const string code = without_comments(text);
  int number = 0;
  for (std::size_t begin = 0; begin < code.size();) {
    const std::size_t end = std::min(code.find('\n', begin), code.size());
    const string line = code.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    std::smatch match;
    if (line.find('#') != string::npos && std::regex_search(line, match, kInclude)) {
      found.push_back({number, match[2].matched, match[2].matched ? match[2].str() : match[3].str()});
    }
  }
  return found;
}

bool is_stop(const string& path, const Include& include) {
  return path == "include/levin/export.h" && starts(include.name, "levin/stop/");
}

std::vector<string> include_violations(const string& path, string_view text) {
  const auto layer = layer_of(path);
  if (!layer) return {path + ":1: this file is in no layer; see the table in tests/layering/rules.cpp"};
  std::vector<string> out;
  for (const Include& include : includes_of(text)) {
    if (is_stop(path, include)) continue;
    if (include.name.empty()) {
      // The one computed include: a kernel file compiled once for each x86 level.
      if (path != "kernels/executor/each_level.h") {
        out.push_back(path + ":" + std::to_string(include.line) +
                      ": computed #include; only kernels/executor/each_level.h has one");
      }
    } else if (include.angled && !starts(include.name, "levin/")) {
      check_outside(path, include, out);
    } else {
      check_inside(path, *layer, include, out);
    }
  }
  return out;
}

std::vector<string> text_violations(const string& path, string_view text) {
  std::vector<string> out;
  const auto report = [&](int line, const string& what) {
    out.push_back(path + ":" + std::to_string(line) + ": " + what);
  };
  if (is_test(path)) {
    check_device_names(string(text), report);
    return out;
  }
  if (is_header(path)) {
    constexpr string_view kStreams[] = {"iostream", "fstream", "sstream", "iomanip", "ostream", "istream"};
    for (const Include& include : includes_of(text)) {
      if (include.angled && listed(kStreams, include.name))
        report(include.line, "a header includes <" + include.name + ">");
    }
  }
  for (const Include& include : includes_of(text)) {
    if (include.name == "cassert" || include.name == "assert.h")
      report(include.line, "assert vanishes under NDEBUG: use fail");
  }
  const string code = starts(path, "autograd/ops/") ? expanded(without_strings(text)) : without_strings(text);
  const auto each = [&](const string& pattern, auto&& visit) {
    const std::regex regex(pattern);
    for (auto at = std::sregex_iterator(code.begin(), code.end(), regex); at != std::sregex_iterator(); ++at)
      visit(*at);
  };
  const auto forbid = [&](const string& pattern, const string& what) {
    each(pattern, [&](const std::smatch& m) { report(line_of(code, static_cast<std::size_t>(m.position())), what); });
  };
  forbid(R"(\bassert\s*\()", "assert vanishes under NDEBUG: use fail");
  forbid(R"(\bvector\s*<\s*bool\s*>)", "std::vector<bool> is not a container of bool");
  forbid(R"(\b(cudaDeviceSynchronize|cuCtxSynchronize)\b)", "breaks what other threads record: wait for streams");
  if (const std::optional<Layer> layer = layer_of(path); layer && *layer != Layer::programs) {
    // The host program's locale decides how these read and write a decimal point.
    const char* const instead = "follows the locale: use tensor/text/number_text.h";
    forbid(R"(\b(strto(d|f|ld)|sto(d|f|ld)|atof|sscanf)\s*\()", instead);
    const string words = without_comments(text);
    const std::regex conversion(R"(%[-+#0-9.*]*[aefgAEFG]\b)");
    for (auto at = std::sregex_iterator(words.begin(), words.end(), conversion); at != std::sregex_iterator(); ++at)
      report(line_of(words, static_cast<std::size_t>(at->position())), instead);
  }
  if (ends(path, ".cuh") || ends(path, ".cu")) {
    // Code that nvcc accepts and the shim cannot run.
    constexpr string_view kPtx[] = {"kernels/device/cluster.cuh", "kernels/device/hardware_math.cuh",
                                    "kernels/device/hopper.cuh", "kernels/device/mma.cuh"};
    if (!listed(kPtx, path))
      forbid(R"(\basm\b)", "PTX stands in kernels/device alone: mma.cuh, hopper.cuh, cluster.cuh, hardware_math.cuh");
    forbid(R"(__shared__\b)", "use LEVIN_SHARED or LEVIN_SHARED_DYNAMIC");
    forbid(R"(<<<)", "launch through kernels/executor/gpu.h");
    forbid(R"(\b__activemask\b)", "__activemask depends on timing: name the lanes");
    for (const Include& include : includes_of(text)) {
      if (starts(include.name, "kernels/simt/") && path != "kernels/device/hopper.cuh")
        report(include.line, "kernels include kernels/device/language.h, not the shim");
    }
  }
  if (starts(path, "include/levin/"))
    forbid(R"(\bstd\s*::\s*function\b)", "std::function in a public header costs 0.3 s");
  if (starts(path, "autograd/ops/")) {
    // An op is in the table by its own name or as the argument of a template: LEVIN_OP_TABLE(Unary<Neg>).
    string tabled;
    each(R"(\bLEVIN_OP_TABLE\s*\(([^()]*))", [&](const std::smatch& m) { tabled += m[1].str() + ";"; });
    each(R"(\bstatic\s+constexpr\s+OpInfo\s+info\b(\s*=\s*\w+\s*::)?)", [&](const std::smatch& m) {
      if (m[1].matched) return;  // a template that takes its functor's info: the functor is in the table
      const auto at = static_cast<std::size_t>(m.position());
      const string name = enclosing_struct(code, at);
      if (is_header(path)) {
        report(line_of(code, at), "op " + name + " stands in a header: ops are in .cu or .cpp files");
      } else if (!std::regex_search(tabled, std::regex("\\b" + name + "\\b"))) {
        report(line_of(code, at), "op " + name + " has no LEVIN_OP_TABLE line in this file");
      }
    });
  }
  return out;
}

std::vector<string> undocumented(const string& path, string_view text) {
  static const std::regex is_class(R"((class|struct)\s+LEVIN_API\s+(\w+))"),
      is_function(R"(LEVIN_API[^(]*?([\w<=>*/+-]+)\s*\()");
  std::vector<string> out;
  const string code = without_strings(text);
  bool said = false;  // by a comment of the group
  int internal = 0;   // braces open since namespace detail
  for (std::size_t at = 0, line = 1; at < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const string_view all = text.substr(at, end - at), own = string_view(code).substr(at, end - at);
    const string_view words = all.substr(std::min(all.find_first_not_of(' '), all.size()));
    if (words.empty()) said = false;
    if (starts(words, "//")) said = said || !starts(words, "// ----");
    const bool is_internal = internal > 0 || starts(words, "namespace detail {");
    if (is_internal) internal += static_cast<int>(std::ranges::count(own, '{') - std::ranges::count(own, '}'));
    const std::size_t mark = own.find("LEVIN_API");
    if (mark != string::npos && !said && !is_internal && all.find("//") == string::npos && !starts(words, "#") &&
        !starts(words, "friend")) {
      std::smatch found;
      const string rest = code.substr(at), line_alone(own);
      const bool named = std::regex_search(line_alone, found, is_class) || std::regex_search(rest, found, is_function);
      out.push_back(path + ":" + std::to_string(line) + ": " + (named ? found[found.size() - 1].str() : line_alone) +
                    " has no comment");
    }
    at = end + 1;
  }
  return out;
}

string include_cycle(const std::vector<std::pair<string, string>>& headers) {
  std::map<string, std::vector<string>> edges;
  for (const auto& [path, text] : headers) {
    for (const Include& include : includes_of(text)) {
      edges[path].push_back(starts(include.name, "levin/") ? "include/" + include.name : include.name);
    }
  }
  std::map<string, int> state;  // 0 not seen, 1 on the path, 2 done
  string cycle;
  const auto visit = [&](const auto& self, const string& path, const string& trail) -> void {
    if (!cycle.empty() || state[path] == 2) return;
    if (state[path] == 1) {
      cycle = trail.substr(trail.find(path));
      return;
    }
    state[path] = 1;
    for (const string& next : edges[path]) self(self, next, trail + " -> " + next);
    state[path] = 2;
  };
  for (const auto& [path, text] : headers) visit(visit, path, path);
  return cycle;
}

std::vector<string> source_files(const std::filesystem::path& root) {
  std::vector<string> files;
  for (auto at = std::filesystem::recursive_directory_iterator(root);
       at != std::filesystem::recursive_directory_iterator(); ++at) {
    const string name = at->path().filename().string();
    if (at->is_directory() &&
        (starts(name, ".") || name == "subprojects" || (at.depth() == 0 && starts(name, "build")))) {
      at.disable_recursion_pending();
    } else if (at->is_regular_file() && (is_header(name) || ends(name, ".cpp") || ends(name, ".cu"))) {
      files.push_back(std::filesystem::relative(at->path(), root).generic_string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace levin::layering
