// The way of a plan to its device: the plan, the index and its view are packed into one pinned buffer and go over in one
// asynchronous copy. A ring of pinned slots lets plans be made ahead of the device.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include <attnloom/args.h>
#include <attnloom/plan.h>

#include "cuda_driver.h"
#include "ffi.h"
#include "index_bytes.h"

namespace {

using attnloom::AheadRow;
using attnloom::IndexBytes;
using attnloom::IndexView;
using attnloom::kMaxLevels;
using attnloom::LevelBytes;
using attnloom::LevelView;
using attnloom::PlanHeader;
using attnloom::RunArgs;
using namespace attnloom::ffi;
namespace cuda = attnloom::cuda;

constexpr int kSlots = 8, kGroup = 4;
constexpr int64_t kLeastCopy = 32 << 10;  // the driver takes longer to pass on what is smaller: 4.3 us of 23 KiB, 2.1 of 32
constexpr int64_t kAlign = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Two passes over the same list of arrays: the first only counts, the second copies too. An array that was placed before
// (levels share page tables and lengths) is not placed again.
class Packer {
 public:
  Packer(char* slot, cuda::DeviceAddress base) : slot_(slot), base_(base) {}

  int64_t bytes() const { return at_; }

  template <class T>
  const T* place(const T* data, int64_t bytes) {
    if (data == nullptr) return nullptr;
    for (int i = 0; i < count_; ++i) {
      if (placed_[i].data == data && placed_[i].bytes >= bytes) return device<T>(placed_[i].at);
    }
    const int64_t at = at_;
    if (slot_ != nullptr && bytes > 0) std::memcpy(slot_ + at, data, static_cast<size_t>(bytes));
    at_ += aligned(bytes);
    if (count_ < kMost) placed_[count_++] = {data, bytes, at};
    return device<T>(at);
  }

  int64_t reserve(int64_t bytes) {
    const int64_t at = at_;
    at_ += aligned(bytes);
    return at;
  }

  template <class T>
  const T* device(int64_t at) const { return reinterpret_cast<const T*>(base_ + static_cast<uint64_t>(at)); }

 private:
  static constexpr int kMost = 12 * kMaxLevels + 8;
  struct Placed {
    const void* data;
    int64_t bytes, at;
  };
  char* slot_;
  cuda::DeviceAddress base_;
  int64_t at_ = 0;
  Placed placed_[kMost];
  int count_ = 0;
};

LevelView place(Packer& packer, const LevelView& level, const LevelBytes& bytes) {
  LevelView placed = level;
  const int64_t rows = level.num_rows, four = 4 * rows, eight = 8 * rows;
  placed.row_indptr = packer.place(level.row_indptr, four + 4);
  placed.row_tokens = packer.place(level.row_tokens, level.row_tokens == nullptr ? 0 : 4 * int64_t{level.row_indptr[rows]});
  placed.kv_len = packer.place(level.kv_len, four);
  placed.kv_start = packer.place(level.kv_start, four);
  placed.kv_offset = packer.place(level.kv_offset, four);
  placed.page_begin = packer.place(level.page_begin, eight);
  if (bytes.indices >= 0) {
    placed.indices = packer.place(static_cast<const char*>(level.indices), bytes.indices);
  }
  placed.block_pos = packer.place(level.block_pos, bytes.block_pos);
  placed.mask_bits = packer.place(level.mask_bits, bytes.mask_bits);
  placed.mask_begin = packer.place(level.mask_begin, eight);
  placed.key_pos = packer.place(level.key_pos, bytes.key_pos);
  placed.key_pos_begin = packer.place(level.key_pos_begin, eight);
  return placed;
}

// The view comes first and the plan second, so that the addresses of both never change.
struct Packed {
  int64_t plan_at, bytes;
};

Packed pack(char* slot, cuda::DeviceAddress base, const RunArgs& args, const PlanHeader& plan, const IndexBytes& bytes) {
  Packer packer(slot, base);
  const int64_t view_at = packer.reserve(sizeof(IndexView));
  const int64_t plan_at = packer.reserve(plan.total_bytes);
  IndexView view = args.index;
  const int64_t requests = view.num_requests, tokens = view.num_tokens;
  view.qo_indptr = packer.place(view.qo_indptr, 4 * (requests + 1));
  view.kv_len = bytes.device_kv_len != nullptr ? static_cast<const int32_t*>(bytes.device_kv_len)
                                               : packer.place(view.kv_len, 4 * requests);
  view.token_request = packer.place(view.token_request, 4 * tokens);
  view.q_pos = packer.place(view.q_pos, 4 * tokens);
  view.ahead = packer.place(view.ahead, static_cast<int64_t>(sizeof(AheadRow)) * (view.num_ahead + 1));
  for (int i = 0; i < view.num_levels; ++i) view.levels[i] = place(packer, args.index.levels[i], bytes.levels[i]);
  if (slot != nullptr) {
    std::memcpy(slot + view_at, &view, sizeof view);
    std::memcpy(slot + plan_at, &plan, static_cast<size_t>(plan.total_bytes));
  }
  return {plan_at, packer.bytes()};
}

// An event after its upload guards a slot. Recording one costs the host more than half of what a copy does, so that on the
// legacy default stream, which is always there to record on later and never captured, a group of uploads shares one.
struct Ring {
  int device;
  int next = 0;
  int open = 0;  // newest uploads that no event follows yet, all on the legacy default stream
  int64_t capacity = 0;
  char* slots[kSlots] = {};
  cuda::Event events[kSlots] = {};
  cuda::Event guards[kSlots] = {};  // of each slot; null: it is free, or open
  cuda::Event last = nullptr;       // the newest one recorded
};

void close_group(Ring& ring, cuda::Stream stream) {
  if (ring.open == 0) return;
  const cuda::Event event = ring.events[(ring.next + kSlots - 1) % kSlots];
  cuda::check(cuda::driver().event_record(event, stream), "recording an upload");
  for (; ring.open > 0; --ring.open) ring.guards[(ring.next + kSlots - ring.open) % kSlots] = event;
  ring.last = event;
}

// Frees the next slot, and those that the same event guards. Returns whether that took a wait.
bool free_slot(Ring& ring) {
  const cuda::Event guard = ring.guards[ring.next];
  if (guard == nullptr) return false;
  const int status = cuda::driver().event_query(guard);
  const bool waits = status == cuda::kNotReady;
  cuda::check(waits ? cuda::driver().event_wait(guard) : status, "waiting for an upload");
  std::replace(ring.guards, ring.guards + kSlots, guard, cuda::Event{});
  return waits;
}

void wait_for_all(Ring& ring) {
  close_group(ring, cuda::kLegacyStream);
  for (cuda::Event event : ring.events) {
    if (event != nullptr) cuda::check(cuda::driver().event_wait(event), "waiting for an upload");
  }
}

void grow(Ring& ring, int64_t bytes) {
  wait_for_all(ring);
  char* fresh[kSlots] = {};
  for (char*& slot : fresh) {
    void* memory = nullptr;
    if (cuda::driver().host_alloc(&memory, static_cast<size_t>(bytes), 1) != 0) {  // 1: for every context
      for (char* got : fresh) {
        if (got != nullptr) cuda::driver().host_free(got);
      }
      fail("MemoryError", "no %lld bytes of pinned memory for plans", static_cast<long long>(bytes));
    }
    slot = static_cast<char*>(memory);
  }
  for (int i = 0; i < kSlots; ++i) {
    if (ring.slots[i] != nullptr) cuda::driver().host_free(ring.slots[i]);
    ring.slots[i] = fresh[i];
  }
  ring.capacity = bytes;
}

Ring& ring_of(const TVMFFIAny& value) { return *reinterpret_cast<Ring*>(integer(value, "ring")); }

}  // namespace

// ring_new(device: int) -> ring: int
ATTNLOOM_EXPORT __tvm_ffi_ring_new(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 1);
    const int device = static_cast<int>(integer(args[0], "device"));
    const cuda::DeviceGuard guard(device);
    auto* ring = new Ring{device};
    for (cuda::Event& event : ring->events) cuda::check(cuda::driver().event_create(&event, 2), "making a CUDA event");
    return_integer(result, reinterpret_cast<int64_t>(ring));
  });
}

// ring_free(ring: int)
ATTNLOOM_EXPORT __tvm_ffi_ring_free(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 1);
    Ring& ring = ring_of(args[0]);
    const cuda::DeviceGuard guard(ring.device);
    wait_for_all(ring);
    for (char* slot : ring.slots) {
      if (slot != nullptr) cuda::driver().host_free(slot);
    }
    delete &ring;
    return_nothing(result);
  });
}

// upload(ring, run_args, plan, index_bytes, buffer, capacity, stream: all int) -> status: int
//   0: on its way; 1: on its way after a wait, since all slots were in use; else the negated bytes that `capacity` lacks.
// Sets plan, device_index, num_workers and merge_pass of the run's arguments.
ATTNLOOM_EXPORT __tvm_ffi_upload(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 7);
    Ring& ring = ring_of(args[0]);
    auto& run_args = *reinterpret_cast<RunArgs*>(integer(args[1], "run_args"));
    const auto& plan = *reinterpret_cast<const PlanHeader*>(integer(args[2], "plan"));
    const auto& bytes = *reinterpret_cast<const IndexBytes*>(integer(args[3], "index_bytes"));
    const auto buffer = static_cast<cuda::DeviceAddress>(integer(args[4], "buffer"));
    const int64_t capacity = integer(args[5], "capacity");
    const auto stream = reinterpret_cast<cuda::Stream>(integer(args[6], "stream"));
    const Packed size = pack(nullptr, buffer, run_args, plan, bytes);
    if (size.bytes > capacity) return return_integer(result, capacity - size.bytes);

    const cuda::DeviceGuard guard(ring.device);
    if (size.bytes > ring.capacity) grow(ring, capacity);
    const bool waited = free_slot(ring);
    if (stream != cuda::kLegacyStream) close_group(ring, cuda::kLegacyStream);
    char* slot = ring.slots[ring.next];
    pack(slot, buffer, run_args, plan, bytes);
    const int64_t copied = std::min(std::max(size.bytes, kLeastCopy), capacity);
    cuda::check(cuda::driver().copy_to_device(buffer, slot, static_cast<size_t>(copied), stream), "uploading a plan");
    ring.next = (ring.next + 1) % kSlots;
    if (++ring.open == kGroup || stream != cuda::kLegacyStream) close_group(ring, stream);
    run_args.device_index = reinterpret_cast<const IndexView*>(buffer);
    run_args.plan = reinterpret_cast<const void*>(buffer + static_cast<uint64_t>(size.plan_at));
    run_args.num_workers = plan.num_workers;
    run_args.merge_pass = plan.num_merge > 0 && plan.fused_merge == 0;
    return_integer(result, waited);
  });
}

// follow_upload(ring, stream): what comes next on `stream` waits for the newest upload
ATTNLOOM_EXPORT __tvm_ffi_follow_upload(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 2);
    Ring& ring = ring_of(args[0]);
    const auto stream = reinterpret_cast<cuda::Stream>(integer(args[1], "stream"));
    const cuda::DeviceGuard guard(ring.device);
    close_group(ring, cuda::kLegacyStream);
    if (ring.last != nullptr) cuda::check(cuda::driver().stream_wait(stream, ring.last, 0), "waiting for an upload");
    return_nothing(result);
  });
}
