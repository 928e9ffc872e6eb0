// The include rules of ARCHITECTURE.md, as functions of one file's text, so that planted violations can test them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::layering {

// The text with comments blanked; `without_strings` blanks the contents of literals too. Line breaks keep their places.
std::string without_comments(std::string_view text);
std::string without_strings(std::string_view text);

struct Include {
  int line;
  bool angled;       // <...>, else "..."
  std::string name;  // empty for a computed include, #include MACRO
};
std::vector<Include> includes_of(std::string_view text);
// A file that does not exist, by which export.h stops too old a compiler.
bool is_stop(const std::string& path, const Include& include);

// Each violation in the file, as `path:line: what is wrong`. `path` is relative to the source root.
std::vector<std::string> include_violations(const std::string& path, std::string_view text);

// Rules on text: no stream headers in headers; no assert() or std::vector<bool>; no std::function in public headers; in
// the library no conversion of floating numbers that follows the locale; a LEVIN_OP_TABLE line for each op struct of
// autograd/ops; in .cuh and .cu files nothing that the shim cannot run.
std::vector<std::string> text_violations(const std::string& path, std::string_view text);

// Each declaration of a public header that is marked LEVIN_API and has no comment of its own: neither at its end, nor
// above it, nor above an earlier line of its group, which is a run of lines without a blank one. A heading ("// ----")
// is no comment of its own. Namespace detail and friends are exempt.
std::vector<std::string> undocumented(const std::string& path, std::string_view text);

// A cycle among the headers, as `a -> b -> a`, or nothing. Each pair is a path and the file's text.
std::string include_cycle(const std::vector<std::pair<std::string, std::string>>& headers);

// Every C++ file below root, relative and sorted, without build folders, hidden folders and subprojects.
std::vector<std::string> source_files(const std::filesystem::path& root);

}  // namespace levin::layering
