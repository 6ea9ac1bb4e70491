// Where the 16-byte pieces of a row lie in shared memory, so that eight rows' pieces of one column meet no bank twice.
#pragma once
#include "mma.cuh"

namespace attnloom::cuda {

// Rows of D 16-bit elements, or of twice as many of 8 bits.
template <int D>
struct Tiled {
  static_assert(D % 8 == 0, "rows are whole pieces");
  static constexpr int pieces = D / 8;
  static constexpr bool swizzled = pieces % 8 == 0;
  static constexpr int pitch = swizzled ? pieces : pieces | 1;  // in pieces; an odd one spreads rows by itself
  static constexpr int row_bytes = pitch * 16;

  static constexpr bool in_blocks = false;

  static constexpr int bytes(int rows) { return rows * row_bytes; }
  // That a warp copies, each of `RowBytes` in memory, 16 bytes a lane.
  template <int RowBytes>
  static constexpr int rows_at_a_time() {
    return 32 % (RowBytes / 16) == 0 ? 512 / RowBytes : 1;
  }
  // From the address of one of a row's first 2^n pieces to that of the piece `pieces_on` further on, a multiple of 2^n;
  // tiles begin at multiples of 128 bytes.
  static ATTNLOOM_DEVICE uint32_t onward(uint32_t address, int pieces_on) {
    return swizzled ? (address ^ (pieces_on & 7) * 16) + (pieces_on & ~7) * 16 : address + pieces_on * 16;
  }

  static ATTNLOOM_DEVICE uint32_t at(int row, int piece) {
    return static_cast<uint32_t>(row * row_bytes + (swizzled ? piece ^ (row & 7) : piece) * 16);
  }
};

// R rows of D 16-bit elements in blocks of 64 elements, the last of them partly used, swizzled as `wgmma` reads them; tiles
// begin at multiples of 1,024 bytes.
template <int D, int R>
struct Blocked {
  static_assert(D % 16 == 0 && R % 8 == 0);
  static constexpr int pieces = D / 8;
  static constexpr bool swizzled = true;
  static constexpr int row_bytes = 128;  // of a row in a block
  static constexpr int block_bytes = R * row_bytes;
  static constexpr bool in_blocks = true;

  static constexpr int bytes(int rows) { return (D + 63) / 64 * rows * row_bytes; }
  template <int RowBytes>
  static constexpr int rows_at_a_time() {
    return 4;  // a block of each
  }
  static ATTNLOOM_DEVICE uint32_t at(int row, int piece) {
    return static_cast<uint32_t>(piece / 8 * block_bytes + row * row_bytes + ((piece ^ row) & 7) * 16);
  }
};

}  // namespace attnloom::cuda
