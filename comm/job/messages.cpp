#include "comm/job/messages.h"

#include "comm/job/wire.h"

namespace levin::dist {

std::string packed(Refusal kind, std::string_view text) { return std::string(Packer().put(kind).bytes()).append(text); }

ReadRefusal read_refusal(std::string_view body) {
  Unpacker in(body);
  ReadRefusal out;
  const auto kind = in.get<std::uint8_t>();
  if (kind <= static_cast<std::uint8_t>(Refusal::stale)) out.kind = static_cast<Refusal>(kind);
  out.text = in.rest();
  return out;
}

std::string packed(const Verdict& v) {
  Packer out;
  out.put(v.kind).put(static_cast<std::int32_t>(v.rank)).put(v.newest_step).put(static_cast<std::int32_t>(v.writer));
  out.put_text(v.text);
  return out.bytes();
}

Verdict read_verdict(std::string_view body) {
  Unpacker in(body);
  Verdict out;
  const auto kind = in.get<std::uint8_t>();
  out.kind = kind <= static_cast<std::uint8_t>(Verdict::Kind::aborted) ? static_cast<Verdict::Kind>(kind)
                                                                       : Verdict::Kind::aborted;
  out.rank = in.get<std::int32_t>();
  out.newest_step = in.get<std::int64_t>();
  out.writer = in.get<std::int32_t>();
  out.text = in.get_text();
  return out;
}

std::string packed(const Beat& b, const Passed& passed, std::string_view words) {
  Packer out;
  out.put(b.phase).put(b.step).put(b.phase_age).put(b.entry).put(b.site).put(b.wait_age).put(b.waited);
  out.put(static_cast<std::uint32_t>(passed.size()));
  for (const auto& [group, collectives] : passed) out.put_text(group).put(collectives);
  out.put_text(words);
  return out.bytes();
}

ReadBeat read_beat(std::string_view body) {
  Unpacker in(body);
  ReadBeat out;
  Beat& b = out.beat;
  const auto phase = in.get<std::uint8_t>();
  b.phase = static_cast<Phase>(phase);
  b.step = in.get<std::int64_t>();
  b.phase_age = in.get<double>();
  b.entry = in.get<std::uint64_t>();
  b.site = in.get<std::uint64_t>();
  b.wait_age = in.get<double>();
  b.waited = in.get<double>();
  const auto groups = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < groups && in.good(); ++i) {
    const std::string key(in.get_text());
    out.passed.emplace_back(key, in.get<std::uint64_t>());
  }
  out.words = in.get_text();
  out.good = in.good() && phase <= static_cast<std::uint8_t>(Phase::idle);
  return out;
}

std::string packed(const GatherCall& call, std::string_view value) {
  Packer out;
  out.put_text(call.group).put(call.nth).put(call.kind).put(call.ordinal).put_text(call.what);
  return std::string(out.bytes()).append(value);
}

ReadGather read_gather(std::string_view body) {
  Unpacker in(body);
  ReadGather out;
  out.group = in.get_text();
  out.nth = in.get<std::uint64_t>();
  const auto kind = in.get<std::uint8_t>();
  out.kind = static_cast<GatherKind>(kind);
  out.ordinal = in.get<std::uint64_t>();
  out.what = in.get_text();
  out.value = in.rest();
  out.good = in.good() && kind <= static_cast<std::uint8_t>(GatherKind::close);
  return out;
}

}  // namespace levin::dist
