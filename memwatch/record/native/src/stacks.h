// The running call stack as a number: the compiled twin of the stack walk in memwatch/record/python/recorder.py.
//
// For every op, this walks the few frames between the op and the module that runs it, and looks up their code objects
// and offsets. A stack seen for the first time is interned by the table of stacks, which keeps the code objects alive.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <vector>

#include "callbacks.h"
#include "schema.h"

namespace memwatch {

using Key = std::vector<int64_t>;

/// Hashes keys and runs of integers alike, so that a look-up makes no key.
struct HashOfKey {
  using is_transparent = void;
  size_t operator()(std::span<const int64_t> key) const {
    size_t hash = key.size();
    for (const int64_t value : key) {
      hash = (hash ^ static_cast<size_t>(value)) * 0x9e3779b97f4a7c15ULL;
    }
    return hash ^ (hash >> 32);
  }
};

struct SameKey {
  using is_transparent = void;
  bool operator()(std::span<const int64_t> one, std::span<const int64_t> other) const {
    return std::ranges::equal(one, other);
  }
};

class Stacks {
 public:
  explicit Stacks(const py::object& table) : table_(table) {}

  /// Return the id of the stack without the innermost `skip` frames.
  int64_t capture(int64_t outer, int64_t task, int skip) {
    if (!table_.enabled) {
      return kNone;
    }
    Frame frame(PyThreadState_GetFrame(PyThreadState_Get()));
    for (; skip > 0 && frame; --skip) {
      frame = frame.back();
    }
    if (!frame) {  // an op of a thread that C++ started
      return kNone;
    }
    const bool engine = task != kNone && frame.code() == table_.engine;
    if (engine && task == task_) {
      return task_stack_;
    }
    const int64_t number = walk(frame, outer);
    if (engine) {
      task_ = task;
      task_stack_ = number;
    }
    return number;
  }

 private:
  /// An owned frame.
  class Frame {
   public:
    explicit Frame(PyFrameObject* frame) : frame_(frame) {}
    Frame(Frame&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
    Frame& operator=(Frame&& other) noexcept {
      std::swap(frame_, other.frame_);
      return *this;
    }
    ~Frame() { Py_XDECREF(reinterpret_cast<PyObject*>(frame_)); }

    explicit operator bool() const { return frame_ != nullptr; }
    PyFrameObject* get() const { return frame_; }
    /// The caller's frame, or none above the outermost. Python makes the frame object now, which needs memory.
    Frame back() const {
      Frame above(PyFrame_GetBack(frame_));
      if (!above && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
      }
      return above;
    }
    /// The address of the code object, which the frame keeps alive.
    int64_t code() const {
      PyCodeObject* code = PyFrame_GetCode(frame_);
      Py_DECREF(reinterpret_cast<PyObject*>(code));
      return reinterpret_cast<int64_t>(code);
    }

   private:
    PyFrameObject* frame_;
  };

  int64_t walk(const Frame& innermost, int64_t outer) {
    // a local, not a member: getting a frame may run gc, which may run ops of the program, which walk the stack too
    std::array<int64_t, 1 + 2 * kMaxDepth> scratch;
    size_t count = 1;
    scratch[0] = outer;
    bool bounded = false;
    Frame above(nullptr);
    const Frame* frame = &innermost;
    for (int depth = 0; depth < kMaxDepth && *frame; ++depth) {
      const int64_t code = frame->code();
      if (table_.is_bound(code)) {
        bounded = true;
        break;
      }
      scratch[count++] = code;
      scratch[count++] = compat::last_instruction(frame->get());
      above = frame->back();
      frame = &above;
    }
    if (!bounded) {
      scratch[0] = kNone;
    }
    const std::span<const int64_t> found(scratch.data(), count);
    const auto known = numbers_.find(found);
    if (known != numbers_.end()) {
      return known->second;
    }
    py::tuple key(count);
    for (size_t index = 0; index < count; ++index) {
      key[index] = python_integer(found[index]);  // it throws; a cast would leave a null
    }
    const py::handle frame_object(reinterpret_cast<PyObject*>(innermost.get()));
    const int64_t number = table_.intern(key, frame_object);
    numbers_.emplace(Key(found.begin(), found.end()), number);
    return number;
  }

  static constexpr int kMaxDepth = 128;
  const StackTable table_;
  std::unordered_map<Key, int64_t, HashOfKey, SameKey> numbers_;
  int64_t task_ = kNone;
  int64_t task_stack_ = kNone;
};

}  // namespace memwatch
