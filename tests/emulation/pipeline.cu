// A warpgroup that copies tiles of keys and two that multiply their 64 rows of queries with them, by turns.
#include <attnloom/cuda/copy.cuh>
#include <attnloom/cuda/swizzle.cuh>
#include <attnloom/cuda/wgmma.cuh>

namespace attnloom::cuda {

constexpr int kColumns = 128;

struct Args {
  const char *q, *k;  // [128][D], [tiles][128][D] of float16
  float* out;         // [128][128], the sum over tiles of q k^T
  int* turns;         // [2 tiles]: which warpgroup multiplied
  int tiles;
};

ATTNLOOM_DEVICE void init(uint64_t& barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count) : "memory");
}
ATTNLOOM_DEVICE void arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
ATTNLOOM_DEVICE void wait(uint64_t& barrier, uint32_t parity) {
  for (int done = 0; !done;)
    asm volatile(
        "{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.b32 %0, 1, 0, done;}"
        : "=r"(done)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
}
ATTNLOOM_DEVICE void meet(int barrier) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(256) : "memory"); }
ATTNLOOM_DEVICE void pass(int barrier) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(256) : "memory"); }

// c += a b^T of 64 and 128 rows.
ATTNLOOM_DEVICE void multiply(float (&c)[16][4], uint64_t a, uint64_t b) {
  asm volatile("{.reg .pred add; setp.ne.b32 add, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
               ATTNLOOM_REGISTERS_64 "}, %64, %65, add, 1, 1, 0, 0;}"
               : ATTNLOOM_TILES_16("+f")
               : "l"(a), "l"(b), "n"(1));
}

template <int D>
ATTNLOOM_DEVICE void copy(char* to, const char* from) {
  const int thread = threadIdx.x % 128;
  for (int n = thread; n < 128 * D / 8; n += 128)
    copy_16(shared_address(to) + Blocked<D, 128>::at(n / (D / 8), n % (D / 8)), from + 16 * n, true);
  close_group();
}

template <int D>
__global__ void pipeline(const Args args) {
  using Tile = Blocked<D, 128>;
  struct Barriers {
    uint64_t full[2], empty[2];
    int turn;
  };
  extern __shared__ char memory[];
  __shared__ Barriers barriers;
  const auto stage = [&](int tile) { return memory + Tile::bytes(128) * (1 + tile % 2); };
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) {
      init(barriers.full[i], 4);
      init(barriers.empty[i], 8);
    }
    barriers.turn = 0;
  }
  if (group == 2) {
    copy<D>(memory, args.q);
    wait_groups<0>();
    publish();
  }
  __syncthreads();

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(24));
    for (int tile = 0; tile < args.tiles; tile++) {
      if (tile >= 2) wait(barriers.empty[tile % 2], tile / 2 + 1 & 1);
      copy<D>(stage(tile), args.k + tile * 128 * D * 2);
      wait_groups<0>();  // of keys
      publish();         // of keys
      __syncwarp();      // of keys
      if (lane == 0) arrive(barriers.full[tile % 2]);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(240));
  float c[16][4] = {};
  if (group == 1) pass(1);
  for (int tile = 0; tile < args.tiles; tile++) {
    wait(barriers.full[tile % 2], tile / 2 & 1);
    meet(1 + group);
    if (warp == 0 && lane == 0) args.turns[barriers.turn++] = group;
    begin_products();
    const uint64_t a = operand(shared_address(memory) + 64 * group * Tile::row_bytes, Tile::block_bytes);
    const uint64_t b = operand(shared_address(stage(tile)), Tile::block_bytes);
    for (int step = 0; step < D / 16; step++)
      multiply(c, a + Tile::at(0, 2 * step) / 16, b + Tile::at(0, 2 * step) / 16);
    close_products();
    if (group == 0 || tile + 1 < args.tiles) pass(2 - group);
    wait_products<0>();
    __syncwarp();  // of products
    if (lane == 0) arrive(barriers.empty[tile % 2]);
  }
  for (int t = 0; t < 16; t++)
    for (int e = 0; e < 4; e++)
      args.out[(64 * group + 16 * warp + lane / 4 + e / 2 * 8) * 128 + 8 * t + lane % 4 * 2 + e % 2] = c[t][e];
}

}  // namespace attnloom::cuda

extern "C" __attribute__((visibility("default"))) int attnloom_run(const attnloom::cuda::Args* args, void* stream) {
  using namespace attnloom::cuda;
  pipeline<kColumns><<<1, 384, 3 * Blocked<kColumns, 128>::bytes(128), static_cast<cudaStream_t>(stream)>>>(*args);
  return cudaGetLastError();
}
extern "C" __attribute__((visibility("default"))) const char* attnloom_error(int) {
  return cudaGetErrorString(cudaErrorLaunchFailure);
}
