// The products of the family `wgmma`: done when they are waited for, no earlier. Until then the accumulators hold NaN,
// and no operand may change. A warp at a time: of 64 rows it has 16.
#pragma once
#include <initializer_list>

#include "instructions.h"

namespace emulation {

constexpr uint32_t kInFlight = 0x7fc0beef;  // a NaN

// What one lane brings to a product.
struct Share {
  float* c;              // its accumulators, which lie side by side
  const uint32_t* a[4];  // its part of the left operand, where that is in registers
};

struct Product {
  Share shares[32];
  bool add, registers;  // c is added to; a lies in registers
  bool transposed;      // b: of rows of n
  uint64_t a, b;        // operands in shared memory
  int n, warp;
  float (*wide)(uint32_t);
  std::vector<uint16_t> left, right;  // [16 rows][16], [n][16], as they were at first
};

struct Accumulators {
  float* c;
  int products;  // in flight
  std::vector<float> values;
};

// The products of one warp.
struct Products {
  std::vector<std::vector<Product>> groups;  // in flight; the last one is open
  std::vector<Accumulators> written;         // by those in flight
  bool fenced;

  Accumulators& of(float* c) {
    for (Accumulators& one : written)
      if (one.c == c) return one;
    return written.emplace_back(Accumulators{c, 0, {}});
  }
};
inline std::vector<Products> products[kResident];  // of each warp of each block

inline void forget_products(int slot, int warps) { products[slot].assign(warps, {{{}}, {}, false}); }
inline Products& products_of_warp() { return products[block->slot][warp()]; }

// Element (row, k) of an operand: 128-byte rows, eight of them `stride` apart, swizzled by 16 bytes.
inline uint16_t element(uint64_t operand, int row, int k, bool transposed) {
  if (operand >> 62 != 1) fail("an operand has another swizzle than that of 128 bytes");
  const auto field = [operand](int shift) { return static_cast<uint32_t>(operand >> shift & 0x3fff) * 16; };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  const int outer = transposed ? k : row, inner = transposed ? row : k;
  uint32_t at = start + outer / 8 * stride + outer % 8 * 128 + inner % 64 * 2 + inner / 64 * leading;
  at ^= (at >> 7 & 7) << 4;
  uint16_t value, known;
  std::memcpy(&value, piece_at(at / kPiece * kPiece) + at % kPiece, 2);
  std::memcpy(&known, mine().known + at, 2);
  if (value != known) fail("a product reads what no fence has made known to it");
  return value;
}

inline std::vector<uint16_t> left_of(const Product& product) {
  std::vector<uint16_t> left(16 * 16);
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++) {
      if (product.registers) {
        const uint32_t pair = *product.shares[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
        left[16 * row + k] = static_cast<uint16_t>(pair >> k % 2 * 16);
      } else {
        left[16 * row + k] = element(product.a, 16 * product.warp + row, k, false);
      }
    }
  return left;
}
inline std::vector<uint16_t> right_of(const Product& product) {
  std::vector<uint16_t> right(product.n * 16);
  for (int n = 0; n < product.n; n++)
    for (int k = 0; k < 16; k++) right[16 * n + k] = element(product.b, n, k, product.transposed);
  return right;
}

inline void check_in_flight(const float* c, int count) {
  for (int i = 0; i < count; i++)
    if (std::bit_cast<uint32_t>(c[i]) != kInFlight) fail("accumulators are written while a product is in flight");
}

inline void begin_product(Products& products, Product product) {
  if (!products.fenced) fail("wgmma without wgmma.fence before it");
  product.left = left_of(product);
  product.right = right_of(product);
  for (const Share& share : product.shares) {
    Accumulators& c = products.of(share.c);
    const int count = product.n / 2;
    if (c.products++ == 0) {
      c.values.assign(share.c, share.c + count);
      std::fill(share.c, share.c + count, std::bit_cast<float>(kInFlight));
    } else {
      check_in_flight(share.c, count);
    }
  }
  products.groups.back().push_back(std::move(product));
}

inline void finish_product(Products& products, const Product& product) {
  if (product.left != left_of(product)) fail("the left operand of a product changed while it was in flight");
  if (product.right != right_of(product)) fail("the right operand of a product changed while it was in flight");
  float right[256][16];
  for (int n = 0; n < product.n; n++)
    for (int k = 0; k < 16; k++) right[n][k] = product.wide(product.right[16 * n + k]);
  float* values[32];
  for (int lane = 0; lane < 32; lane++) values[lane] = products.of(product.shares[lane].c).values.data();
  for (int row = 0; row < 16; row++) {
    float left[16];
    for (int k = 0; k < 16; k++) left[k] = product.wide(product.left[16 * row + k]);
    for (int n = 0; n < product.n; n++) {
      float sum = 0.0f;
      for (int k = 0; k < 16; k++) sum += left[k] * right[n][k];
      float& c = values[row % 8 * 4 + n % 8 / 2][n / 8 * 4 + row / 8 * 2 + n % 2];
      c = product.add ? c + sum : sum;
    }
  }
  for (const Share& share : product.shares) {
    check_in_flight(share.c, product.n / 2);
    Accumulators& c = products.of(share.c);
    if (--c.products > 0) continue;
    std::copy(c.values.begin(), c.values.end(), share.c);
    products.written.erase(products.written.begin() + (&c - products.written.data()));
  }
}

// ------------------------------------------------------------------------------------------------------ instructions

inline void fence_proxy() {
  if (!ignores("fence.proxy.async")) make_known();
}
inline void fence_products() {
  meet_warp(0, "wgmma.fence", [](const int*) { products_of_warp().fenced = !ignores("wgmma.fence"); });
}
inline void close_products() {
  meet_warp(0, "wgmma.commit_group", [](const int*) { products_of_warp().groups.emplace_back(); });
}
inline void wait_products(int left) {
  meet_warp(0, "wgmma.wait_group", [left](const int*) {
    Products& mine = products_of_warp();
    mine.fenced = false;  // registers may be written now
    if (ignores("wgmma.wait_group")) return;
    while (static_cast<int>(mine.groups.size()) - 1 > left) {
      for (const Product& product : mine.groups.front()) finish_product(mine, product);
      mine.groups.erase(mine.groups.begin());
    }
  });
}

// The first of the accumulators: they have to stand side by side, as arrays do.
inline float* first_of(std::initializer_list<float*> c) {
  for (size_t i = 0; i < c.size(); i++)
    if (c.begin()[i] != *c.begin() + i) fail("accumulators do not stand side by side");
  return *c.begin();
}

// c = a b or c += a b, operands in shared memory.
template <class T, int N, bool Transposed>
void multiply_shared(std::initializer_list<float*> c, uint64_t a, uint64_t b, bool add) {
  meet_warp(Share{first_of(c), {}}, "wgmma", [=](const Share* all) {
    Product product{{}, add, false, Transposed, a, b, N, warp() % 4, low_of<T>, {}, {}};
    std::copy(all, all + 32, product.shares);
    begin_product(products_of_warp(), std::move(product));
  });
}

// c += a b, a in registers.
template <class T, int N, bool Transposed>
void multiply_registers(std::initializer_list<float*> c, const uint32_t& a0, const uint32_t& a1, const uint32_t& a2,
                        const uint32_t& a3, uint64_t b) {
  meet_warp(Share{first_of(c), {&a0, &a1, &a2, &a3}}, "wgmma", [=](const Share* all) {
    Product product{{}, true, true, Transposed, 0, b, N, warp() % 4, low_of<T>, {}, {}};
    std::copy(all, all + 32, product.shares);
    begin_product(products_of_warp(), std::move(product));
  });
}

}  // namespace emulation
