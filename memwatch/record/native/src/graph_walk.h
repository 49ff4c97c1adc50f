// The walk along autograd's graph behind a tensor: the compiled twin of `GraphWalk` in heap/reference_search.py.
//
// It makes no Python object of a node. torch would keep the object as long as the node lives, and would then free the
// graph by recursion: a long graph would overflow the stack.
#pragma once

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <set>
#include <utility>
#include <vector>

#include "autograd_state.h"

namespace memwatch {

/// The walks of one sample. Visits each node once for each root, and at most `max_nodes` nodes over all walks.
class GraphWalk {
 public:
  explicit GraphWalk(int64_t max_nodes) : left_(max_nodes) {}

  /// Return the sequence number of the tensor's node and of each node behind it. Each comes with the `ctx` of a
  /// function written in Python, or None.
  ///
  /// root: number of the root whose variable holds the tensor.
  py::list behind(const at::Tensor& tensor, int64_t root) {
    py::list found;
    std::vector<Node> waiting;
    if (const AutogradState state(tensor); state.node()) {
      waiting.push_back(state.node());
    }
    while (!waiting.empty() && left_ > 0) {
      const Node node = std::move(waiting.back());
      waiting.pop_back();
      if (!met_.insert({root, node.get()}).second) {
        continue;
      }
      kept_.push_back(node);
      --left_;
      found.append(py::make_tuple(static_cast<int64_t>(node->sequence_nr()), context_of(*node)));
      for (const torch::autograd::Edge& edge : node->next_edges()) {
        if (edge.function && dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get()) == nullptr) {
          waiting.push_back(edge.function);
        }
      }
    }
    return found;
  }

 private:
  using Node = decltype(torch::autograd::Edge::function);

  static py::object context_of(const torch::autograd::Node& node) {
    PyObject* object =
        is_in_python(node) ? compat::object_of(static_cast<const torch::autograd::PyNode&>(node)) : nullptr;
    return object == nullptr ? py::object(py::none()) : py::reinterpret_borrow<py::object>(object);
  }

  int64_t left_;
  std::set<std::pair<int64_t, const torch::autograd::Node*>> met_;
  std::vector<Node> kept_;  // keeps the nodes alive, so that no address in `met_` is used again
};

}  // namespace memwatch
