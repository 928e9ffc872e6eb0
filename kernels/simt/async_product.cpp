// wgmma: products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"), and stmatrix.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/simt/async.h"
#include "kernels/simt/poison.h"
#include "levin/dtype.h"
#include "levin/error.h"

namespace levin::simt {

namespace {

constexpr std::uint32_t kPoison = 0xffffffffu;  // a NaN
constexpr int kDepth = 16;                      // k of an instruction, 16-bit types

// The fields of a descriptor, in bytes ("Matrix Descriptor Format").
struct Fields {
  std::size_t start, leading, stride;
  int base_offset;
  kernels::Swizzle swizzle;
};
Fields fields_of(std::uint64_t d) {
  constexpr kernels::Swizzle kBy[] = {kernels::Swizzle::none, kernels::Swizzle::bytes128, kernels::Swizzle::bytes64,
                                      kernels::Swizzle::bytes32};
  return {std::size_t(d & 0x3fff) << 4, std::size_t(d >> 16 & 0x3fff) << 4, std::size_t(d >> 32 & 0x3fff) << 4,
          int(d >> 49 & 7), kBy[d >> 62]};
}

// Where the element (line, k) of an operand lies, as an address of the window ("Strides", "Canonical Layouts").
std::size_t place(const Fields& f, bool along_mn, int line, int k) {
  constexpr int kWidths[] = {16, 32, 64, 128};  // bytes of a row of the swizzle
  const auto width = std::size_t(kWidths[int(f.swizzle)]), l = std::size_t(line), kk = std::size_t(k);
  const std::size_t in_row = width / 2;  // elements
  std::size_t offset;
  if (!along_mn) {
    offset = l % 8 * width + l / 8 * f.stride + kk * 2;
    if (f.swizzle == kernels::Swizzle::none) offset = l % 8 * 16 + l / 8 * f.stride + kk / 8 * f.leading + kk % 8 * 2;
  } else if (f.swizzle == kernels::Swizzle::none) {
    offset = l % 8 * 2 + l / 8 * f.stride + kk % 8 * 16 + kk / 8 * f.leading;
  } else {
    offset = l % in_row * 2 + l / in_row * f.leading + kk % 8 * width + kk / 8 * f.stride;
  }
  return swizzled(f.start + offset, f.swizzle);
}

float number(std::uint16_t bits, bool is_f16) {
  f16 half;
  bf16 brain;
  half.bits = brain.bits = bits;
  return is_f16 ? static_cast<float>(half) : static_cast<float>(brain);
}

}  // namespace

std::uint64_t Async::descriptor(const void* p, unsigned leading, unsigned stride, kernels::Swizzle swizzle, Site at) {
  range_of(p, 16, "descriptor", at);
  check_aligned(p, 16, at);
  constexpr std::uint64_t kBits[] = {0, 3, 2, 1};
  const auto field = [](unsigned bytes) { return std::uint64_t{(bytes & 0x3ffffu) >> 4}; };
  return field(window_address(p)) | field(leading) << 16 | field(stride) << 32 | kBits[int(swizzle)] << 62;
}

// ---- Registers

namespace {

// A thread's registers as they are, also those whose scope has ended, of which the shim is not told: by single words,
// because AddressSanitizer checks what memcpy reads.
void read_registers(const std::uint32_t* p, std::vector<std::uint32_t>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<const volatile std::uint32_t*>(p)[i];
}

}  // namespace

Registers& Async::array_of(std::uint32_t* p, int count, const char* what, Site at) {
  AsyncThread& thread = self();
  for (Registers& array : thread.arrays) {
    if (array.p == p && array.count == count) return array;
    if (array.in_flight && array.p < p + count && p < array.p + array.count) {
      engine_.fail_thread(std::string("wgmma: ") + what + " overlaps registers of a product in flight", at);
    }
  }
  // Arrays of functions that have returned.
  std::erase_if(thread.arrays, [&](const Registers& a) { return a.p < p + count && p < a.p + a.count; });
  thread.arrays.push_back({p, count, 0, false, {p, p + count}});
  return thread.arrays.back();
}

void Async::take_array(Registers& array, int op) {
  if (!array.in_flight) {
    array.values.assign(array.p, array.p + array.count);
    std::fill(array.p, array.p + array.count, kPoison);
    poison_memory(array.p, std::size_t(array.count) * 4);
  }
  array.in_flight = true;
  array.last_op = op;
}

void Async::give_array(Registers& array, Site at) {
  unpoison_memory(array.p, std::size_t(array.count) * 4);
  array.in_flight = false;
  if (std::any_of(array.p, array.p + array.count, [](std::uint32_t x) { return x != kPoison; })) {
    fail_block("registers of a wgmma, issued last at " + site_text(at) +
               ", were written before the wgmma_wait that covers it");
  }
  std::copy(array.values.begin(), array.values.end(), array.p);
}

// ---- Products

// The product that the running thread's call is part of: its warpgroup's calls are the same, one by one.
Product& Async::product_of(const ProductCall& call) {
  AsyncThread& thread = self();
  Warpgroup& group = warpgroups_[std::size_t(index_ / kWarpgroup)];
  if ((index_ / kWarpgroup + 1) * kWarpgroup > int(threads_.size())) {
    engine_.fail_thread("wgmma in a warpgroup of less than 128 threads", call.at);
  }
  const auto index = std::size_t(thread.ops - group.completed);
  if (index == group.ops.size()) {
    group.ops.push_back({.call = call, .group = int(thread.ops_at_commit.size()), .first_thread = index_});
  }
  Product& product = group.ops[index];
  const ProductCall& first = product.call;
  const char* differs = nullptr;
  if (!same(first.at, call.at)) differs = "place";
  if (first.n != call.n || first.is_f16 != call.is_f16 || first.a_in_registers != call.a_in_registers ||
      first.a_along_mn != call.a_along_mn || first.b_along_mn != call.b_along_mn)
    differs = "shape";
  if (first.a != call.a) differs = "descriptor of a";
  if (first.b != call.b) differs = "descriptor of b";
  if (first.accumulate != call.accumulate) differs = "accumulate";
  if (product.group != int(thread.ops_at_commit.size())) differs = "number of wgmma_commit before it";
  if (differs != nullptr) {
    engine_.fail_thread("wgmma: warps " + text(product.first_thread / kLanes) + " and " + text(warp_) +
                            " of a warpgroup differ in the " + differs + "; the first call is at " +
                            site_text(first.at),
                        call.at);
  }
  return product;
}

void Async::multiply(const ProductCall& call, float* d, const std::uint32_t* a) {
  enter();
  AsyncThread& thread = self();
  if (!thread.fenced) engine_.fail_thread("wgmma before the first wgmma_fence", call.at);
  const auto numbers = [&](const void* p, int count, const char* what) -> Registers& {
    Registers& array = array_of(static_cast<std::uint32_t*>(const_cast<void*>(p)), count, what, call.at);
    if (!array.in_flight && !std::equal(array.values.begin(), array.values.end(), array.p)) {
      engine_.fail_thread(std::string("wgmma: ") + what + " was written after the last wgmma_fence", call.at);
    }
    return array;
  };
  Product& product = product_of(call);
  const int t = index_ % kWarpgroup;
  if (a != nullptr) {
    Registers& array = numbers(a, 4, "a");
    take_array(array, thread.ops);
    product.a.resize(kWarpgroup * 4);
    std::copy(array.values.begin(), array.values.end(), product.a.begin() + t * 4);
  }
  take_array(numbers(d, call.n / 2, "d"), thread.ops);
  product.d[t] = reinterpret_cast<std::uint32_t*>(d);
  product.clocks[warp_ % 4] = clock();
  ++thread.ops;
  thread.op_at = call.at;
  if (++product.callers == kWarpgroup) issue(product);
}

Range Async::operand(std::uint64_t descriptor, bool along_mn, int lines, const char* what, Site at) {
  const Fields f = fields_of(descriptor);
  const auto refuse = [&](const std::string& why) {
    engine_.fail_thread(std::string("wgmma: the descriptor of ") + what + " " + why, at);
  };
  if (f.base_offset != 0) refuse("has base offset " + text(f.base_offset) + ", expected 0");
  constexpr std::size_t kPatterns[] = {16, 256, 512, 1024};
  const std::size_t pattern = kPatterns[int(f.swizzle)], row = along_mn ? 16 : pattern / 8;
  if (f.swizzle != kernels::Swizzle::none && f.start % pattern >= row) {
    refuse("starts at " + text(f.start % pattern) + " bytes above a multiple of " + text(pattern) +
           ", which is not the start of a row of the swizzle's pattern");
  }
  std::size_t first = SIZE_MAX, last = 0;
  for (int line = 0; line < lines; ++line) {
    for (int k = 0; k < kDepth; ++k) {
      const std::size_t at_byte = place(f, along_mn, line, k);
      first = std::min(first, at_byte);
      last = std::max(last, at_byte + 2);
    }
  }
  const std::size_t before = reinterpret_cast<std::uintptr_t>(shared_) % kPage;
  if (first < before || last > before + view_.size()) {
    refuse("names bytes up to " + text(last > before + view_.size() ? last - before - view_.size() : before - first) +
           " outside of the block's shared memory");
  }
  return {first - before, last - before};
}

// All four warps have called: what the product reads must be there.
void Async::issue(Product& product) {
  const ProductCall& call = product.call;
  const auto reads = [&](std::uint64_t descriptor, bool along_mn, int lines, const char* what) {
    const Range range = operand(descriptor, along_mn, lines, what, call.at);
    for (const Clock& clock : product.clocks) check(range, false, clock, "wgmma", call.at);
    check_swizzle(range, int(fields_of(descriptor).swizzle), "wgmma", call.at);
    check_views(range, "wgmma", call.at);
    for (int w = 0; w < 4; ++w) {
      const int warp = index_ / kWarpgroup * 4 + w;
      record({range, products_of(warp), std::uint32_t(product.group) + 1, false, "wgmma", call.at});
    }
  };
  if (!call.a_in_registers) reads(call.a, call.a_along_mn, 64, "a");
  reads(call.b, call.b_along_mn, call.n, "b");
  if (completion_ == Completion::early) {
    Warpgroup& group = warpgroups_[std::size_t(index_ / kWarpgroup)];
    while (!group.ops.empty() && group.ops.front().callers == kWarpgroup) finish(index_ / kWarpgroup);
  }
}

// The oldest product of a warpgroup completes; its result appears at the wait.
void Async::finish(int warpgroup) {
  Warpgroup& group = warpgroups_[std::size_t(warpgroup)];
  const Product& product = group.ops.front();
  const ProductCall& call = product.call;
  const std::size_t before = reinterpret_cast<std::uintptr_t>(shared_) % kPage;
  const auto element = [&](const Fields& f, bool along_mn, int line, int k) {
    std::uint16_t bits;
    std::memcpy(&bits, &view_[place(f, along_mn, line, k) - before], 2);
    return number(bits, call.is_f16);
  };
  float a[64][kDepth];
  std::vector<float> b(std::size_t(call.n * kDepth)), d(std::size_t(64 * call.n));
  const Fields fa = fields_of(call.a), fb = fields_of(call.b);
  for (int k = 0; k < kDepth; ++k) {
    for (int line = 0; line < call.n; ++line) b[std::size_t(k * call.n + line)] = element(fb, call.b_along_mn, line, k);
    for (int line = 0; line < 64 && !call.a_in_registers; ++line) a[line][k] = element(fa, call.a_along_mn, line, k);
  }
  std::vector<std::uint32_t>* values[kWarpgroup];
  const auto row = [](int t, int i) { return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8; };
  const auto column = [](int t, int i) { return i / 4 * 8 + t % 4 * 2 + i % 2; };
  for (int t = 0; t < kWarpgroup; ++t) {
    for (Registers& array : threads_[std::size_t(warpgroup * kWarpgroup + t)].arrays) {
      if (array.p == product.d[t]) values[t] = &array.values;
    }
    for (int i = 0; i < call.n / 2; ++i) {
      d[std::size_t(row(t, i) * call.n + column(t, i))] =
          call.accumulate ? __builtin_bit_cast(float, (*values[t])[std::size_t(i)]) : 0.0f;
    }
    for (int r = 0; r < 4 && call.a_in_registers; ++r) {
      for (int half = 0; half < 2; ++half) {
        a[t / 32 * 16 + t % 32 / 4 + r % 2 * 8][r / 2 * 8 + t % 4 * 2 + half] =
            number(std::uint16_t(product.a[std::size_t(t * 4 + r)] >> 16 * half), call.is_f16);
      }
    }
  }
  multiply_tile(a, b.data(), d.data(), call.n);
  for (int t = 0; t < kWarpgroup; ++t) {
    for (int i = 0; i < call.n / 2; ++i) {
      (*values[t])[std::size_t(i)] =
          __builtin_bit_cast(std::uint32_t, d[std::size_t(row(t, i) * call.n + column(t, i))]);
    }
  }
  group.ops.pop_front();
  ++group.completed;
  wake();
}

void Async::fence_products() {
  enter();
  self().fenced = true;
  for (Registers& array : self().arrays) {
    if (!array.in_flight) read_registers(array.p, array.values);
  }
  engine_.yield();
}

void Async::commit_products() {
  enter();
  self().ops_at_commit.push_back(self().ops);
  engine_.yield();
}

void Async::wait_products(int left, Site at) {
  enter();
  const int target = std::max(0, int(self().ops_at_commit.size()) - left);
  park({Condition::Kind::products, index_ / kWarpgroup, target}, "wgmma_wait", at);
}

// ---- stmatrix

namespace {

struct MatrixStore {
  unsigned char* row;
  const std::uint32_t* r;
};
// Row i of matrix m goes to the address of lane 8 m + i; register m of lane l holds its columns 2 (l % 4) and the next,
// for i = l / 4.
void store_matrices(const LaneInput (&in)[32], std::uint64_t (&)[32], std::uint32_t) {
  const auto lane = [&](int l) -> MatrixStore& {
    return *reinterpret_cast<MatrixStore*>(static_cast<std::uintptr_t>(in[l].value));
  };
  for (int m = 0; m < 4; ++m) {
    for (int l = 0; l < 32; ++l) std::memcpy(lane(8 * m + l / 4).row + l % 4 * 4, &lane(l).r[m], 4);
  }
}

}  // namespace

// ---- The calls of hopper.h

std::uint64_t descriptor(const void* p, unsigned leading, unsigned stride, kernels::Swizzle swizzle, Site at) {
  return in_kernel("descriptor").async(at).descriptor(p, leading, stride, swizzle, at);
}
void wgmma(const ProductCall& call, float* d, const std::uint32_t* a) {
  in_kernel("wgmma").async(call.at).multiply(call, d, a);
}
void wgmma_fence(Site at) { in_kernel("wgmma_fence").async(at).fence_products(); }
void wgmma_commit(Site at) { in_kernel("wgmma_commit").async(at).commit_products(); }
void wgmma_wait(int groups_left, Site at) { in_kernel("wgmma_wait").async(at).wait_products(groups_left, at); }

void stmatrix_x4(void* row, const std::uint32_t (&r)[4], Site at) {
  in_kernel("stmatrix_x4").async(at).will_write(row, 16, "stmatrix_x4", at);
  MatrixStore store{static_cast<unsigned char*>(row), r};
  warp_collective(~0u, "stmatrix_x4", at, {reinterpret_cast<std::uintptr_t>(&store)}, store_matrices);
}
void will_store(void* to, std::size_t bytes, Site at) {
  in_kernel("store_shared").async(at).will_write(to, bytes, "store_shared", at);
}

}  // namespace levin::simt
