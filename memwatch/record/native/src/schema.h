// Generated from memwatch/capture/schema.py by `make schema`: change the schema, not this file.
//
// A row is a struct of 64-bit integers, in the order of its table's columns; docs/tables.md says what each means.
// Times are ticks of the recorder's clock: the flush turns a field `start_ticks` into the column `start_ns`.
#pragma once

#include <cstdint>

// clang-format off
namespace memwatch {

/// "There is none" in any column: no module, no stack.
constexpr int64_t kNone = -1;

/// What the program was doing when an op ran.
enum Phase : int64_t { kPhaseForward, kPhaseBackward, kPhaseOptimizer, kPhaseRecompute };

/// How an op used a storage.
enum Access : int64_t { kAccessRead, kAccessWrite, kAccessOutput };

/// How a storage came to be known.
enum Origin : int64_t { kOriginOp, kOriginBaseline, kOriginExternal, kOriginUnobserved, kOriginThread };

/// Which argument of an op a number is.
enum Number : int64_t { kNumberDimension, kNumberReduction };

/// A row of the table `ops`.
struct OpsRow {
  int64_t op;
  int64_t name;
  int64_t stack;
  int64_t module;
  int64_t phase;
  int64_t sequence;
  int64_t start_ticks;
  int64_t end_ticks;
  int64_t failed;
};

/// A row of the table `nodes`.
struct NodesRow {
  int64_t op;
  int64_t sequence;
};

/// A row of the table `views`.
struct ViewsRow {
  int64_t op;
  int64_t sequence;
  int64_t stack;
  int64_t module;
  int64_t node;
};

/// A row of the table `lifts`.
struct LiftsRow {
  int64_t storage;
  int64_t stack;
  int64_t module;
};

/// A row of the table `numbers`.
struct NumbersRow {
  int64_t op;
  int64_t argument;
  int64_t value;
  int64_t dimensions;
  int64_t size;
  int64_t stride;
};

/// A row of the table `uses`.
struct UsesRow {
  int64_t op;
  int64_t storage;
  int64_t access;
};

/// A row of the table `births`.
struct BirthsRow {
  int64_t storage;
  int64_t op;
  int64_t time_ticks;
  int64_t address;
  int64_t nbytes;
  int64_t device;
  int64_t origin;
  int64_t shape;
};

/// A row of the table `deaths`.
struct DeathsRow {
  int64_t storage;
  int64_t op;
  int64_t time_ticks;
};

/// A row of the table `packs`.
struct PacksRow {
  int64_t pack;
  int64_t storage;
  int64_t op;
  int64_t sequence;
  int64_t module;
  int64_t nbytes;
  int64_t shape;
  int64_t time_ticks;
};

/// A row of the table `unpacks`.
struct UnpacksRow {
  int64_t pack;
  int64_t op;
  int64_t time_ticks;
  int64_t released;
};

}  // namespace memwatch
