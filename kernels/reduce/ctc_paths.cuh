#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CTC_PATHS_CUH
#define LEVIN_KERNELS_CTC_PATHS_CUH
// Sums over all paths that spell a text, in logarithms; T: float, double. All contiguous: log_p [steps, texts, states],
// spelled [texts, states] (a text with a blank around each label), the lengths of inputs and of targets [texts].
//
//   ctc_paths(on, const T* log_p, const CtcTexts& of, T* alpha, T* losses)
//     alpha[t, n, s] = log_p[t, n, s] + log(e^alpha[t-1, n, s] + e^alpha[t-1, n, s-1] + [skips] e^alpha[t-1, n, s-2])
//     losses[n] = -log of the sum of e^alpha of the last two states at the last step
//   ctc_paths_backward(on, const T* gy, const T* log_p, const CtcTexts& of, const T* alpha, const T* losses, T* room,
//                      T* gx)
//     gx[t, n, s] = -gy[n] e^(alpha[t, n, s] + beta[t, n, s] + losses[n]), the share of the paths that are in state s
//     at step t; room: [2, texts, states] on devices, null on the CPU
//
// alpha has no numbers at steps and states beyond a text's own; gx is 0 there. A text has a block of a device, whose
// threads share the states, and a barrier ends each step.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "kernels/math/math.h"

namespace levin::kernels {

struct CtcTexts {
  const int64_t *spelled, *input_lengths, *target_lengths;
  int64_t steps, texts, states;
};

template <class T>
inline constexpr T kLogOfNone = -math::detail::Limits<T>::inf;

// The part of a batch that is text n's. A length outside of the tensors counts as the nearest one inside.
struct CtcText {
  const int64_t* spelled;
  int64_t steps, states;  // states: 2 labels + 1
  LEVIN_HD CtcText(const CtcTexts& of, int64_t n)
      : spelled(of.spelled + n * of.states),
        steps(inside(of.input_lengths[n], of.steps)),
        states(2 * inside(of.target_lengths[n], of.states / 2) + 1) {}
  // Whether a path may come to state s from s - 2, over the blank between unequal labels.
  LEVIN_HD bool skips(int64_t s) const { return s >= 2 && spelled[s] != spelled[s - 2]; }
  LEVIN_HD static int64_t inside(int64_t length, int64_t most) {
    return length < 0 ? 0 : length > most ? most : length;
  }
};

// log(e^a + e^b + e^c); NaN where one of them is NaN or +inf, which no probability has.
template <class T>
LEVIN_HD T log_of_sum(T a, T b, T c) {
  constexpr T inf = math::detail::Limits<T>::inf;
  T most = b > a ? b : a;
  most = c > most ? c : most;
  const T base = most > -inf ? most : T(0);  // -inf must not be subtracted from itself
  return base +
         math::log(math::exp_nonpositive(a - base) + math::exp_nonpositive(b - base) + math::exp_nonpositive(c - base));
}

// The loss of a text whose last step left `blank` in the last state and `label` in the one before.
template <class T>
LEVIN_HD T ctc_loss_of(const CtcText& text, T blank, T label) {
  if (text.steps == 0) return text.states == 1 ? T(0) : math::detail::Limits<T>::inf;
  return -log_of_sum(blank, text.states == 1 ? kLogOfNone<T> : label, kLogOfNone<T>);
}

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/reduce/ctc_paths.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(ctc_paths)
LEVIN_PICK(ctc_paths_backward)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

// The threads of a text's block, and the states that are the calling thread's.
inline constexpr int64_t kMostCtcThreads = 512;
[[nodiscard]] inline Grid ctc_grid(const CtcTexts& of) {
  const int64_t threads = std::min(kMostCtcThreads, (of.states + 31) / 32 * 32);
  return {.blocks = static_cast<unsigned>(of.texts), .threads = static_cast<unsigned>(threads)};
}
template <class F>
__device__ __forceinline__ void each_state(int64_t states, F&& f) {
  for (int64_t s = threadIdx.x; s < states; s += blockDim.x) f(s);
}

template <class T>
__global__ void __launch_bounds__(kMostCtcThreads) ctc_alpha(const T* log_p, CtcTexts of, T* alpha, T* losses) {
  const int64_t n = blockIdx.x, step = of.texts * of.states;
  const CtcText text(of, n);
  const T* emitted = log_p + n * of.states;
  T* row = alpha + n * of.states;
  if (text.steps > 0) each_state(text.states, [&](int64_t s) { row[s] = s < 2 ? emitted[s] : kLogOfNone<T>; });
  __syncthreads();
  for (int64_t t = 1; t < text.steps; ++t) {
    const T* before = row;
    emitted += step;
    row += step;
    each_state(text.states, [&](int64_t s) {
      const T own = emitted[s], next = s > 0 ? before[s - 1] : kLogOfNone<T>,
              over = text.skips(s) ? before[s - 2] : kLogOfNone<T>;
      row[s] = own + log_of_sum(before[s], next, over);
    });
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const int64_t last = text.states - 1;
  const bool some = text.steps > 0;
  losses[n] = ctc_loss_of<T>(text, some ? row[last] : T(0), some && last > 0 ? row[last - 1] : T(0));
}
template <class T>
void ctc_paths(const Gpu& on, const T* log_p, const CtcTexts& of, T* alpha, T* losses) {
  on.launch(ctc_alpha<T>, ctc_grid(of), log_p, of, alpha, losses);
}

// room[t % 2] holds log_p + beta of step t.
template <class T>
__global__ void __launch_bounds__(kMostCtcThreads)
    ctc_beta(const T* gy, const T* log_p, CtcTexts of, const T* alpha, const T* losses, T* room, T* gx) {
  const int64_t n = blockIdx.x, step = of.texts * of.states;
  const CtcText text(of, n);
  const T loss = losses[n], scale = -gy[n];
  const bool spelled = loss != math::detail::Limits<T>::inf;
  for (int64_t t = of.steps - 1; t >= 0; --t) {
    const int64_t at = t * step + n * of.states;
    const bool ends = t == text.steps - 1;
    const auto row = [&](int64_t of_step) { return room + (of_step % 2 * of.texts + n) * of.states; };
    T* const own = row(t);
    const T* const after = row(t + 1);
    each_state(of.states, [&](int64_t s) {
      if (t >= text.steps || s >= text.states || !spelled) {
        gx[at + s] = T(0);
        return;
      }
      T beta = s >= text.states - 2 ? T(0) : kLogOfNone<T>;
      if (!ends) {
        beta = log_of_sum(after[s], s + 1 < text.states ? after[s + 1] : kLogOfNone<T>,
                          s + 2 < text.states && text.skips(s + 2) ? after[s + 2] : kLogOfNone<T>);
      }
      own[s] = beta + log_p[at + s];
      gx[at + s] = scale * math::exp(alpha[at + s] + beta + loss);
    });
    __syncthreads();
  }
}
template <class T>
void ctc_paths_backward(const Gpu& on, const T* gy, const T* log_p, const CtcTexts& of, const T* alpha, const T* losses,
                        T* room, T* gx) {
  on.launch(ctc_beta<T>, ctc_grid(of), gy, log_p, of, alpha, losses, room, gx);
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {
using cpu::ctc_paths, gpu::ctc_paths, cpu::ctc_paths_backward, gpu::ctc_paths_backward;  // of the executor given
}  // namespace levin::kernels

#endif
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// f(text, n, room) for each text of a batch; room: `rows` rows of its states, with two numbers more.
template <class T, class F>
void each_text(const Cpu& on, const CtcTexts& of, int64_t rows, F&& f) {
  const int64_t work = of.steps * of.states;
  on.parallel_for(of.texts, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, work)), [&](int64_t begin, int64_t end) {
    const lib::Scratch room(static_cast<size_t>(rows * (of.states + 2)) * sizeof(T));
    for (int64_t n = begin; n < end; ++n) f(CtcText(of, n), n, room.as<T>());
  });
}

template <class T>
void ctc_paths(const Cpu& on, const T* log_p, const CtcTexts& of, T* alpha, T* losses) {
  const int64_t step = of.texts * of.states;
  each_text<T>(on, of, 1, [&](const CtcText& text, int64_t n, T* skips) {
    const int64_t states = text.states;
    for (int64_t s = 0; s < states; ++s) skips[s] = text.skips(s) ? T(1) : T(0);
    const T* emitted = log_p + n * of.states;
    T* row = alpha + n * of.states;
    if (text.steps > 0)
      for (int64_t s = 0; s < states; ++s) row[s] = s < 2 ? emitted[s] : kLogOfNone<T>;
    for (int64_t t = 1; t < text.steps; ++t) {
      const T* before = row;
      emitted += step;
      row += step;
      row[0] = emitted[0] + before[0];
      if (states > 1) row[1] = emitted[1] + log_of_sum<T>(before[1], before[0], kLogOfNone<T>);
#pragma GCC ivdep
      for (int64_t s = 2; s < states; ++s) {
        const T over = skips[s] > T(0) ? before[s - 2] : kLogOfNone<T>;
        row[s] = emitted[s] + log_of_sum<T>(before[s], before[s - 1], over);
      }
    }
    losses[n] = ctc_loss_of<T>(text, text.steps > 0 ? row[states - 1] : T(0),
                               text.steps > 0 && states > 1 ? row[states - 2] : T(0));
  });
}

template <class T>
void ctc_paths_backward(const Cpu& on, const T* gy, const T* log_p, const CtcTexts& of, const T* alpha, const T* losses,
                        T*, T* gx) {
  const int64_t step = of.texts * of.states;
  each_text<T>(on, of, 3, [&](const CtcText& text, int64_t n, T* room) {
    const bool spelled = losses[n] != math::detail::Limits<T>::inf;
    const int64_t steps = spelled ? text.steps : 0, states = text.states;
    // own, after: log_p + beta of this step and of the step after, with two states more that no path reaches.
    T *const skips = room, *own = skips + of.states + 2, *after = own + of.states + 2;
    for (int64_t s = 0; s < states + 2; ++s) {
      skips[s] = s < states && text.skips(s) ? T(1) : T(0);
      own[s] = after[s] = kLogOfNone<T>;
    }
    const T loss = losses[n], scale = -gy[n];
    for (int64_t t = steps; t < of.steps; ++t) std::fill_n(gx + t * step + n * of.states, of.states, T(0));
    for (int64_t t = steps - 1; t >= 0; --t) {
      const int64_t at = t * step + n * of.states;
      const T *const emitted = log_p + at, *const reached = alpha + at;
      T* const to = gx + at;
      std::swap(own, after);
      const auto finish = [&](int64_t s, T beta) __attribute__((always_inline)) {
        own[s] = beta + emitted[s];
        to[s] = scale * math::exp(reached[s] + beta + loss);
      };
      if (t == steps - 1) {
        for (int64_t s = 0; s < states; ++s) finish(s, s >= states - 2 ? T(0) : kLogOfNone<T>);
      } else {
#pragma GCC ivdep
        for (int64_t s = 0; s < states; ++s)
          finish(s, log_of_sum<T>(after[s], after[s + 1], skips[s + 2] > T(0) ? after[s + 2] : kLogOfNone<T>));
      }
      std::fill(to + states, to + of.states, T(0));
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
