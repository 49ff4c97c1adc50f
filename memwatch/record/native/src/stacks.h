// The running call stack as a number: the compiled twin of `Stacks.capture` in memwatch/record/tables/stacks.py.
//
// Every op walks the few frames between it and the module that runs it, and looks their code objects and offsets
// up. A stack seen for the first time is interned by the Python object, which keeps the code objects.
#pragma once

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "python.h"

namespace memwatch {

using Key = std::vector<int64_t>;

struct HashOfKey {
  size_t operator()(const Key& key) const {
    size_t hash = key.size();
    for (const int64_t value : key) {
      hash = (hash ^ static_cast<size_t>(value)) * 0x9e3779b97f4a7c15ULL;
    }
    return hash ^ (hash >> 32);
  }
};

class Stacks {
 public:
  /// Read the boundaries of a `memwatch.record.tables.stacks.Stacks`, which keeps this object.
  explicit Stacks(const py::object& stacks)
      : self_(stacks.ptr()),
        enabled_(py::bool_(stacks.attr("enabled"))),
        engine_(integer(stacks.attr("engine").ptr())) {
    for (const auto& bound : stacks.attr("bounds")) {
      bounds_.insert(integer(bound.ptr()));
    }
  }

  /// Return the id of the stack, leaving out the innermost `skip` frames; as `Stacks.capture` does.
  int64_t capture(int64_t outer, int64_t task, int skip) {
    if (!enabled_) {
      return NONE;
    }
    Frame frame(PyThreadState_GetFrame(PyThreadState_Get()));
    for (; skip > 0 && frame; --skip) {
      frame = Frame(PyFrame_GetBack(frame.get()));
    }
    if (!frame) {  // an op of a thread that C++ started
      return NONE;
    }
    const bool engine = task != NONE && frame.code() == engine_;
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
    key_.assign(1, outer);
    bool bounded = false;
    Frame above(nullptr);
    const Frame* frame = &innermost;
    for (int depth = 0; depth < kMaxDepth && *frame; ++depth) {
      const int64_t code = frame->code();
      if (bounds_.count(code) != 0) {
        bounded = true;
        break;
      }
      key_.push_back(code);
      key_.push_back(PyFrame_GetLasti(frame->get()));
      above = Frame(PyFrame_GetBack(frame->get()));
      frame = &above;
    }
    if (!bounded) {
      key_[0] = NONE;
    }
    const auto known = numbers_.find(key_);
    if (known != numbers_.end()) {
      return known->second;
    }
    const Key mine = key_;  // other threads may come by while Python runs
    py::tuple key(mine.size());
    for (size_t index = 0; index < mine.size(); ++index) {
      key[index] = mine[index];
    }
    const py::handle frame_object(reinterpret_cast<PyObject*>(innermost.get()));
    const int64_t number = integer(self_.attr("intern")(key, frame_object).ptr());
    numbers_.emplace(mine, number);
    return number;
  }

  static constexpr int kMaxDepth = 128;
  py::handle self_;
  bool enabled_;
  int64_t engine_;
  std::unordered_set<int64_t> bounds_;
  std::unordered_map<Key, int64_t, HashOfKey> numbers_;
  Key key_;
  int64_t task_ = NONE;
  int64_t task_stack_ = NONE;
};

}  // namespace memwatch
