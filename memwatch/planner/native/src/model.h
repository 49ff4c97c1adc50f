// The recompute problem, see `recompute/model.py`.
#pragma once

#include "arrays.h"

namespace memwatch::planner {

struct Model {
  Int num_ops;
  Int num_buffers;
  Ints read_ptr;
  Ints read;
  Ints read_version;
  Ints make_ptr;
  Ints make;
  Ints write_ptr;
  Ints write;
  Ints write_version;
  Ints once;
  Ints writer_ptr;
  Ints writer;
  Ints producer;
  Ints nbytes;
  Ints workspace;
  Reals cost;
  Ints again;
  Ints stays;
  Ints movable;
  Reals move_cost;
  Ints kind;
  Ints external;
  Ints final_version;
  Int always;
  Int has_once;

  bool is_op(Int token) const { return token < num_ops; }
  bool is_offload(Int token) const { return token >= num_ops && token < num_ops + num_buffers; }
  Int moved_buffer(Int token) const { return (token - num_ops) % num_buffers; }
};

}  // namespace memwatch::planner
