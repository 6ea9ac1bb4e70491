// What each worker has to do so far, the least of it found at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace attnloom::scheduler {

constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kMaxLoad = INT64_MAX >> 16;  // that leaves room for the worker below it

// A heap of `load << 16 | worker`, once no worker is idle. Its nodes have four children: half the levels of two.
class Loads {
 public:
  struct Given {
    int32_t worker;
    int64_t load;  // with what it was given
  };

  void restart(int32_t workers) {
    workers_ = workers;
    busy_ = 0;
    heap_.assign(workers / kChildren * kChildren + kChildren + 1, kNever);
  }

  // To the least loaded worker, the first of equals.
  Given give(int64_t cost) {
    const bool some_idle = busy_ < workers_;
    const int64_t key = (some_idle ? busy_ : heap_[0]) + (cost << 16);
    if (some_idle) {
      add(key);
    } else {
      sift_down(0, key);
    }
    return {static_cast<int32_t>(key & UINT16_MAX), key >> 16};
  }

 private:
  static constexpr size_t kChildren = 4;

  void add(int64_t key) {
    heap_[busy_++] = key;
    if (busy_ < workers_) return;
    for (size_t node = busy_ / kChildren + 1; node-- > 0;) sift_down(node, heap_[node]);
  }

  // Puts `key` in the place of a node or below it. Past the last node lie keys that are never less.
  void sift_down(size_t node, int64_t key) {
    const size_t leaves = (heap_.size() - 1) / kChildren;
    while (node < leaves) {
      size_t least = kChildren * node + 1;
      for (size_t child = least + 1, end = least + kChildren; child < end; ++child) {
        least = heap_[child] < heap_[least] ? child : least;
      }
      if (heap_[least] >= key) break;
      heap_[node] = heap_[least];
      node = least;
    }
    heap_[node] = key;
  }

  std::vector<int64_t> heap_;
  int32_t workers_ = 0;
  int32_t busy_ = 0;
};

}  // namespace attnloom::scheduler
