// The running node of autograd, its number, and the leaves of the graph.
#pragma once

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>

#include <limits>

#include "python.h"
#include "schema.h"

namespace memwatch {

/// The sequence number of the node that backward runs. Callbacks at the end of backward, such as FSDP's, run outside of
/// nodes.
inline int64_t running_sequence() {
  const auto node = torch::autograd::get_current_node();
  const uint64_t sequence = node ? node->sequence_nr() : std::numeric_limits<uint64_t>::max();
  const bool is_one = sequence <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return is_one ? static_cast<int64_t>(sequence) : kNone;  // AccumulateGrad's is the largest
}

/// The sequence number of the node that was made last.
inline int64_t last_sequence() {
  return c10::GradMode::is_enabled() ? static_cast<int64_t>(at::sequence_number::peek()) - 1 : kNone;
}

/// The newest node of this thread that a row of an op or a view already has.
constinit inline thread_local int64_t newest_told = kNone;

/// Return whether autograd has made a node in this thread since the last op or view that was noted.
inline bool has_new_node() { return c10::GradMode::is_enabled() && last_sequence() != newest_told; }

/// Return the leaves that may get gradients from the backward in this thread. The engine lists its nodes.
inline py::list leaves_of_backward() {
  py::list leaves;
  const auto add = [&](torch::autograd::Node* node) {
    if (node->sequence_nr() != std::numeric_limits<uint64_t>::max()) {  // AccumulateGrad's is the largest
      return;
    }
    const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
    if (leaf != nullptr && leaf->variable.defined()) {
      leaves.append(owned(THPVariable_Wrap(leaf->variable)));
    }
  };
  if (const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph()) {
    for (torch::autograd::Node* node : *nodes) {
      add(node);
    }
  }
  if (const auto node = torch::autograd::get_current_node()) {  // the root is not in the list
    add(node.get());
  }
  return leaves;
}

}  // namespace memwatch
