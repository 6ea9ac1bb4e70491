// Where the arrays of an index lie, asked for through Python's buffer protocol. The few words of its stable ABI stand here,
// so that building the launcher takes no headers of Python. Called with the interpreter's lock held.
#include <cstddef>
#include <cstdint>

#include "index_bytes.h"

extern "C" {
struct PyBuffer {
  const void* data;
  void* owner;
  ptrdiff_t bytes, itemsize;
  int readonly, ndim;
  const char* format;
  const ptrdiff_t *shape, *strides, *suboffsets;
  void* internal;
};
#define ATTNLOOM_OF_PYTHON __attribute__((weak))  // the process has them
extern ATTNLOOM_OF_PYTHON char _Py_NoneStruct;
ATTNLOOM_OF_PYTHON void* PyTuple_GetItem(void* tuple, ptrdiff_t at);
ATTNLOOM_OF_PYTHON ptrdiff_t PyTuple_Size(void* tuple);
ATTNLOOM_OF_PYTHON int PyObject_GetBuffer(void* object, PyBuffer* buffer, int flags);
ATTNLOOM_OF_PYTHON void PyBuffer_Release(PyBuffer* buffer);
}

namespace {

using attnloom::IndexBytes;
using attnloom::IndexView;
using attnloom::LevelBytes;
using attnloom::LevelView;

constexpr int kStrided = 0x18;  // PyBUF_STRIDES
constexpr int kOfIndex = 4, kOfLevel = 12;

// An array of one dimension, or of two whose rows are contiguous; its owner keeps it where it is.
struct Array {
  const void* data = nullptr;
  int64_t bytes = 0;   // from the first element to the last
  int64_t itemsize = 0;
  int64_t row_stride = 0;  // in elements; 0: one dimension

  template <class T>
  const T* as() const { return static_cast<const T*>(data); }
};

// The arrays of a tuple, one after another; none is an array of nothing. Levels share some, which are asked for once.
class Arrays {
 public:
  explicit Arrays(void* tuple) : tuple_(tuple) {}

  bool failed() const { return failed_; }

  Array next() {
    void* object = PyTuple_GetItem(tuple_, at_++);
    PyBuffer buffer;
    if (failed_ || object == &_Py_NoneStruct) return {};
    for (int i = 0; i < known_; ++i) {
      if (objects_[i] == object) return arrays_[i];
    }
    if (object == nullptr || PyObject_GetBuffer(object, &buffer, kStrided) != 0) {
      failed_ = true;
      return {};
    }
    Array array{buffer.data, buffer.bytes, buffer.itemsize, 0};
    if (buffer.ndim == 2) {
      array.row_stride = buffer.strides[0] / buffer.itemsize;
      if (buffer.bytes > 0) array.bytes = (buffer.shape[0] - 1) * buffer.strides[0] + buffer.shape[1] * buffer.itemsize;
    }
    PyBuffer_Release(&buffer);
    if (known_ < kMost) {
      objects_[known_] = object;
      arrays_[known_++] = array;
    }
    return array;
  }

 private:
  static constexpr int kMost = kOfIndex + kOfLevel;
  void* tuple_;
  ptrdiff_t at_ = 0;
  bool failed_ = false;
  int known_ = 0;
  void* objects_[kMost];
  Array arrays_[kMost];
};

void view_level(Arrays& arrays, LevelView& view, LevelBytes& bytes) {
  view.row_indptr = arrays.next().as<int32_t>();
  view.row_tokens = arrays.next().as<int32_t>();
  const Array kv_len = arrays.next();
  view.kv_len = kv_len.as<int32_t>();
  view.num_rows = static_cast<int32_t>(kv_len.bytes / 4);
  view.kv_start = arrays.next().as<int32_t>();
  view.kv_offset = arrays.next().as<int32_t>();
  view.page_begin = arrays.next().as<int64_t>();
  const Array indices = arrays.next();
  view.indices = indices.data;
  view.indices_head_stride = indices.row_stride;
  view.indices_are_64 = indices.itemsize == 8;
  bytes.indices = indices.data == nullptr ? -1 : indices.bytes;
  const Array block_pos = arrays.next(), mask_bits = arrays.next();
  view.block_pos = block_pos.as<int32_t>();
  bytes.block_pos = block_pos.bytes;
  view.mask_bits = mask_bits.as<uint32_t>();
  bytes.mask_bits = mask_bits.bytes;
  view.mask_begin = arrays.next().as<int64_t>();
  const Array key_pos = arrays.next();
  view.key_pos = key_pos.as<int32_t>();
  bytes.key_pos = key_pos.bytes;
  view.key_pos_begin = arrays.next().as<int64_t>();
}

}  // namespace

// Fills `view` and `bytes` from a tuple of arrays, or none where there is none: qo_indptr, kv_len, token_request, q_pos of
// the index, then the twelve of each level as LevelView has them. Page ids that are none are on the device. Returns 0, or
// -1 with a Python exception set.
extern "C" __attribute__((visibility("default"))) int attnloom_view_index(void* tuple, int page_size, IndexView* view,
                                                                          IndexBytes* bytes) {
  Arrays arrays(tuple);
  view->qo_indptr = arrays.next().as<int32_t>();
  const Array kv_len = arrays.next(), token_request = arrays.next();
  view->kv_len = kv_len.as<int32_t>();
  view->token_request = token_request.as<int32_t>();
  view->q_pos = arrays.next().as<int32_t>();
  view->num_requests = static_cast<int32_t>(kv_len.bytes / 4);
  view->num_tokens = static_cast<int32_t>(token_request.bytes / 4);
  view->page_size = page_size;
  view->num_levels = static_cast<int32_t>((PyTuple_Size(tuple) - kOfIndex) / kOfLevel);
  for (int i = 0; i < view->num_levels; ++i) view_level(arrays, view->levels[i], bytes->levels[i]);
  return arrays.failed() ? -1 : 0;
}
