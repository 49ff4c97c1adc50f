// The hot path: run one intercepted op and append its rows. The compiled twin of memwatch/record/python/ops.py.
//
// Plain tensors are read here. Others (wrappers, sparse, nested, symbolic) are passed to Python code that knows their
// parts. The interpreter's lock is held whenever Python objects or rows are touched.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <limits>
#include <memory>
#include <set>

#include "kinds.h"
#include "overloads.h"
#include "storages.h"

namespace memwatch {

/// The storages that an op is given: number, kind of use and address of each.
struct Given {
  static constexpr unsigned kMost = 8;  // more are on the heap
  c10::SmallVector<std::pair<int64_t, int64_t>, kMost> uses;
  c10::SmallVector<int64_t, kMost> keys;
};

/// The data about an op that is recorded before it runs.
struct Call {
  const Kind* kind = nullptr;
  int64_t number = 0, stack = kNone, module = kNone, phase = 0, sequence = kNone, made = kNone, start = 0;
  int64_t workspace_bytes = kNone;  // read when the first storage that the op made is seen
  Given given;
  c10::SmallVector<NumbersRow, 2> numbers;
  torch::jit::Stack kept;  // the arguments of an op that may give them other storages
};

class Recorder {
 public:
  /// callbacks: an `OpCallbacks` of binding.py. uses: where to append, beside Python. started: the op counter.
  Recorder(const py::object& callbacks, std::shared_ptr<Storages> storages, std::shared_ptr<Stacks> stacks,
           py::object context, std::shared_ptr<Rows> uses, py::list started);

  /// Run an op that Python passes on: `OpRecorder.run` of memwatch/record/backend.py.
  ///
  /// Returns null with Python's error set if the op raised. A C++ exception could fail for lack of memory.
  py::object run(const py::object& kind, const py::tuple& args, const py::dict& kwargs);

  /// Run an op that a dispatch mode sees: its `__torch_dispatch__`. Returns null like `run`.
  py::object dispatch(const py::object& mode, const py::object& func, const py::object& types, const py::tuple& args,
                      const py::dict& kwargs);

  /// Stop recording and release every Python object. Python's garbage collector cannot see that they are held here.
  ///
  /// An op that is running now, in this thread or in another, releases them when it ends.
  void close();

  /// Call `flush_due` after an op of that number, or that ended later than that.
  void flush_at(int64_t op, int64_t ticks) {
    flush_op_ = op;
    flush_ticks_ = ticks;
  }

  /// Note an op that the dispatch key sees, before it runs. Returns false if the op is not to be recorded.
  bool before(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call);

  /// Note the node that autograd made for a view, before the view runs. Memory that the node's backward allocates has
  /// no other line.
  void view() { view(view_); }

  /// Note a tensor that torch made from Python's data, below every op.
  void lift(const at::Tensor& tensor, int skip = 0);

  /// The rows of the ops that ran.
  const std::shared_ptr<Rows>& ops() const { return ops_; }

  /// The rows of the nodes that ops of a backward made.
  const std::shared_ptr<Rows>& nodes() const { return nodes_; }

  /// The rows of the nodes that views made.
  const std::shared_ptr<Rows>& views() const { return views_; }

  /// The rows of the storages that torch made of Python's data.
  const std::shared_ptr<Rows>& lifts() const { return lifts_; }

  /// The rows of the dimensions and reductions among the arguments of ops.
  const std::shared_ptr<Rows>& numbers() const { return numbers_; }

  /// Append its rows when it has run; `stack` holds its results, or nothing if it raised.
  void after(const c10::OperatorHandle& op, const torch::jit::Stack* stack, Call& call, int64_t end);

 private:
  py::object perform_boxed(const Kind* kind, c10::OperatorHandle op, torch::jit::Stack stack);
  bool before(const Kind& kind, const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call);
  py::object perform(const Kind& kind, const PythonKind& python_kind, const py::object& function, int skip,
                     const py::tuple& args, const py::dict& kwargs);
  py::object with_tensors(const Kind& kind, const Call& call, const PythonKind& python_kind, const py::tuple& args);
  void view(const Kind& kind, int skip = 0);
  bool start(Call& call, int skip);
  void begin(Call& call, int skip);
  bool number(Call& call);
  void ran(const Call& call, int64_t end, bool failed);
  void write_uses(const Call& call);
  static void note_numbers(Call& call, c10::ArrayRef<c10::IValue> arguments);
  void flush_if_due(const Call& call, int64_t end);
  template <typename Look>
  bool look(const Kind& kind, Look&& with);
  void tell(const Kind& kind, const py::handle& error);
  void lose();
  void clear_error();
  void could_not_record(const Kind& kind, py::error_already_set& error);
  void could_not_record(const Kind& kind, const char* what);

  int64_t number_of(const at::Tensor& tensor);
  void give(const at::Tensor& tensor, int64_t access, Given& given);
  void give(const c10::IValue& value, int64_t access, Given& given);
  void give(PyObject* value, int64_t access, Given& given);
  void made(Call& call, const at::Tensor& tensor, int64_t at);
  void made(Call& call, const c10::IValue& value, int64_t at);
  void made(Call& call, PyObject* value, int64_t at);

  int64_t ops_started() const { return integer(PyList_GET_ITEM(started_.ptr(), 0)); }
  void set_ops_started(int64_t count);
  void leave();

  /// Counts a running op, so that nothing it needs is released meanwhile.
  class Running {
   public:
    explicit Running(Recorder& recorder, bool entered = false) : recorder_(recorder) {
      recorder_.running_ += entered ? 0 : 1;
    }
    ~Running() {
      if (!stays_) {
        recorder_.leave();
      }
    }
    void stays() { stays_ = true; }

   private:
    Recorder& recorder_;
    bool stays_ = false;
  };

  int64_t running_ = 0;
  bool closed_ = false;
  std::set<int64_t> backwards_;  // graph tasks whose ops were seen, until all of them have ended

  int64_t flush_op_ = std::numeric_limits<int64_t>::max(), flush_ticks_ = flush_op_;
  OpCallbacks callbacks_;
  CallContext context_;
  const py::list started_;
  std::shared_ptr<Storages> storages_;
  std::shared_ptr<Stacks> stacks_;
  const std::shared_ptr<Rows> ops_ = std::make_shared<Rows>(), nodes_ = std::make_shared<Rows>(),
                              views_ = std::make_shared<Rows>(), lifts_ = std::make_shared<Rows>(),
                              numbers_ = std::make_shared<Rows>(), uses_;
  Kind view_, lift_;  // of every view and every tensor of data that the dispatch key sees
  Kind unknown_;      // of an op whose kind could not be found
  Kinds kinds_;
  Overloads overloads_;
};

}  // namespace memwatch
