// One warp that copies a box, and gives what has come in.
#include <attnloom/cuda/swizzle.cuh>
#include <attnloom/cuda/tensor_maps.h>

namespace attnloom::cuda {

constexpr int kRows = 2 * 4;

struct Args {
  const uint16_t* data;
  uint16_t* out;  // [rows][64]
  int64_t sizes[4], strides[3];
  int at[4];
};

__global__ void copy(const Args args, const __grid_constant__ TensorMap map) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Barrier full;
  if (lane_id() == 0) {
    make_barrier(full, 1);
    arrive_before(full, kRows * 128);
    copy_box(shared_address(memory), map, args.at[0], args.at[1], args.at[2], args.at[3], full);
  }
  __syncwarp();
  wait(full, 0);
  for (int i = lane_id(); i < kRows * 64; i += 32)
    args.out[i] = *reinterpret_cast<uint16_t*>(memory + Blocked<64, kRows>::at(i / 64, i % 64 / 8) + i % 8 * 2);
}

}  // namespace attnloom::cuda

extern "C" __attribute__((visibility("default"))) int attnloom_run(const attnloom::cuda::Args* args, void* stream) {
  using namespace attnloom::cuda;
  TensorMap map;
  if (!encode(map, args->data, args->sizes, args->strides, {64, 2, 4, 1})) return -1;
  copy<<<1, 32, kRows * 128, static_cast<cudaStream_t>(stream)>>>(*args, map);
  return cudaGetLastError();
}
extern "C" __attribute__((visibility("default"))) const char* attnloom_error(int status) {
  return status < 0 ? "there is no map" : cudaGetErrorString(cudaErrorLaunchFailure);
}
