// A CUDA driver whose device is the host: copies at once, and says that events are pending as long as it is told to. While
// they are, what is copied from must stay as it is until an event after the copy has been waited for.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int fake_pending = 0, fake_waits = 0, fake_copies = 0, fake_records = 0, fake_no_memory = 0, fake_torn = 0;
EXPORT size_t fake_recorded_on = 0;
static char context;

namespace {

struct Event {
  int recorded = 0;
  int copies = 0;  // those that were queued before it
  void* stream = nullptr;
};

struct Copy {
  int number;
  void* stream;
  const void* from;
  std::string bytes;
};
std::vector<Copy> copies;
int queued = 0;

void finish(const Event& event) {
  std::erase_if(copies, [&](const Copy& copy) {
    if (copy.stream != event.stream || copy.number > event.copies) return false;
    fake_torn += std::memcmp(copy.from, copy.bytes.data(), copy.bytes.size()) != 0;
    return true;
  });
}

}  // namespace

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuDevicePrimaryCtxRetain(void** out, int device) { return device == 0 ? (*out = &context, 0) : 101; }
EXPORT int cuCtxGetCurrent(void** out) { return *out = nullptr, 0; }
EXPORT int cuCtxPushCurrent_v2(void*) { return 0; }
EXPORT int cuCtxPopCurrent_v2(void**) { return 0; }
EXPORT int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  return fake_no_memory ? 2 : (*out = std::malloc(bytes), 0);
}
EXPORT int cuMemFreeHost(void* memory) {
  fake_torn += static_cast<int>(std::erase_if(copies, [&](const Copy& copy) { return copy.from == memory; }));
  return std::free(memory), 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  ++fake_copies;
  if (fake_pending) copies.push_back({++queued, stream, from, std::string(static_cast<const char*>(from), bytes)});
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}
EXPORT int cuEventCreate(void** out, unsigned) { return *out = new Event, 0; }
EXPORT int cuEventRecord(void* event, void* stream) {
  ++fake_records;
  fake_recorded_on = reinterpret_cast<size_t>(stream);
  return *static_cast<Event*>(event) = {1, queued, stream}, 0;
}
EXPORT int cuEventQuery(void* event) { return static_cast<Event*>(event)->recorded && fake_pending ? 600 : 0; }
EXPORT int cuEventSynchronize(void* event) {
  Event& waited_for = *static_cast<Event*>(event);
  fake_waits += waited_for.recorded;
  finish(waited_for);
  return waited_for.recorded = 0, 0;
}
EXPORT int cuStreamIsCapturing(void*, int* status) { return *status = 0, 0; }
EXPORT int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
EXPORT int cuGetErrorName(int status, const char** out) {
  return *out = status == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_UNKNOWN", 0;
}
