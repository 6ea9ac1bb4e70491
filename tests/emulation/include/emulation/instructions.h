// The PTX instructions of the family `mma`, as ../../ptx.py names them. Operands stand in the order of their numbers.
#pragma once
#include <attnloom/narrow.h>

#include "memory.h"

namespace emulation {

using attnloom::BFloat16;
using attnloom::Half;

inline char ignored[32];  // an instruction that does nothing, so that tests see it missed

inline bool ignores(const char* instruction) { return std::strcmp(ignored, instruction) == 0; }

template <class T>
float low_of(uint32_t pair) { return T{static_cast<uint16_t>(pair)}; }
template <class T>
float high_of(uint32_t pair) { return T{static_cast<uint16_t>(pair >> 16)}; }
template <class T>
uint32_t pair_of(float low, float high) { return T::nearest(low).bits | uint32_t{T::nearest(high).bits} << 16; }

// ---------------------------------------------------------------------------------------------------------- numbers

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

inline void exp2_flushed(float& y, float x) { y = flushed(std::exp2(flushed(x))); }
inline void exp2(float& y, float x) { y = std::exp2(x); }
inline void reciprocal(float& y, float x) { y = flushed(1.0f / flushed(x)); }
inline void sine(float& y, float x) { y = std::sin(x); }
inline void cosine(float& y, float x) { y = std::cos(x); }
inline void tanh(float& y, float x) { y = std::tanh(x); }

template <class T>
void pack(uint32_t& pair, float high, float low) { pair = pair_of<T>(low, high); }
template <class T>
void unpack(float& low, float& high, uint32_t pair) { low = low_of<T>(pair), high = high_of<T>(pair); }
template <class T>
void multiply_pairs(uint32_t& c, uint32_t a, uint32_t b) {
  c = pair_of<T>(low_of<T>(a) * low_of<T>(b), high_of<T>(a) * high_of<T>(b));
}

inline float of_e4m3(uint32_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const float finite = exponent == 0 ? mantissa * 0x1p-9f : (8 + mantissa) * std::ldexp(1.0f, exponent - 10);
  const float size = exponent == 15 && mantissa == 7 ? NAN : finite;
  return byte & 128 ? -size : size;
}
inline void widen_e4m3(uint32_t& low, uint32_t& high, uint32_t word) {
  low = pair_of<Half>(of_e4m3(word & 255), of_e4m3(word >> 8 & 255));
  high = pair_of<Half>(of_e4m3(word >> 16 & 255), of_e4m3(word >> 24));
}

// ----------------------------------------------------------------------------------------------------------- memory

// A copy is done when its thread waits for it, no earlier; until then its place holds NaN.
inline void create_policy(uint64_t& policy) { policy = 0; }
inline void copy_async(uint32_t to, const void* from, int exists, uint64_t = 0) {
  if (exists) check_global(from, kPiece);
  if (exists && reinterpret_cast<uintptr_t>(from) % kPiece != 0) fail("copies from an address that is not aligned");
  std::memset(piece_at(to), kPoison, kPiece);
  me().groups.back().push_back({to, static_cast<const char*>(from), exists != 0});
}
inline void close_copies() { me().groups.emplace_back(); }
inline void wait_copies(int left) {
  if (ignores("cp.async.wait_group")) return;
  auto& groups = me().groups;
  while (static_cast<int>(groups.size()) - 1 > left) {
    for (const Copy& copy : groups.front()) finish_copy(copy);
    groups.erase(groups.begin());
  }
}

inline void prefetch(const void* at) { check_global(at, 1); }
// Of a kernel that may begin before the one before it has ended.
inline void wait_for_kernel() { me().waited = !ignores("griddepcontrol.wait"); }
inline void atomic_add_one(int& before, int* at) {
  check_global(at, sizeof(int));
  before = (*at)++;
}

// -------------------------------------------------------------------------------------------------------- matrices

// A row of eight numbers of a matrix.
struct MatrixRow {
  uint16_t at[8];
};

// Lane l reads row l % 8 of matrix l / 8 when it comes here, whatever others have yet to write: the lanes that meet do
// not wait for one another's memory.
inline const MatrixRow* meet_rows(uint32_t address, const char* what) {
  MatrixRow mine;
  std::memcpy(&mine, piece_at(address), sizeof mine);
  return meet_warp(mine, what);
}

// Each lane gets two neighbours of row, or of column, l / 4 of each matrix.
inline void load_matrices(uint32_t& x0, uint32_t& x1, uint32_t& x2, uint32_t& x3, uint32_t address) {
  const MatrixRow* rows = meet_rows(address, "ldmatrix") + current % 32 / 4;
  const int column = current % 4 * 2;
  for (uint32_t* x : {&x0, &x1, &x2, &x3}) {
    *x = rows->at[column] | uint32_t{rows->at[column + 1]} << 16;
    rows += 8;
  }
}
inline void load_matrices_transposed(uint32_t& x0, uint32_t& x1, uint32_t& x2, uint32_t& x3, uint32_t address) {
  const MatrixRow* rows = meet_rows(address, "ldmatrix.trans") + current % 4 * 2;
  const int column = current % 32 / 4;
  for (uint32_t* x : {&x0, &x1, &x2, &x3}) {
    *x = rows[0].at[column] | uint32_t{rows[1].at[column]} << 16;
    rows += 8;
  }
}

// c += a b, of 16 x 16 and 16 x 8 elements of T.
template <class T>
void multiply_add(float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                  uint32_t b0, uint32_t b1) {
  struct Fragments {
    float a[4][2], b[2][2];
  };
  const auto wide = [](uint32_t pair, float (&to)[2]) { to[0] = low_of<T>(pair), to[1] = high_of<T>(pair); };
  Fragments mine;
  wide(a0, mine.a[0]), wide(a1, mine.a[1]), wide(a2, mine.a[2]), wide(a3, mine.a[3]);
  wide(b0, mine.b[0]), wide(b1, mine.b[1]);
  const Fragments* all = meet_warp(mine, "mma");
  float* const c[] = {&c0, &c1, &c2, &c3};
  const int g = current % 32 / 4, column = current % 4 * 2;
  for (int e = 0; e < 4; e++) {
    const Fragments *left = all + 4 * g, *right = all + 4 * (column + e % 2);
    float sum = 0.0f;
    for (int half = 0; half < 2; half++)
      for (int k = 0; k < 8; k++) sum += left[k / 2].a[e / 2 + 2 * half][k % 2] * right[k / 2].b[half][k % 2];
    *c[e] += sum;
  }
}

}  // namespace emulation
