// What the recorder needs to know of an overload, computed once: the compiled twin of `OpKind`.
#pragma once

#include <ATen/core/function_schema.h>

#include <set>
#include <string>
#include <vector>

#include "python.h"

namespace memwatch {

enum Access : int64_t { kRead, kWrite, kOutput };  // as memwatch.capture.schema.ACCESSES

struct Kind {
  std::string text;
  int64_t name = NONE;  // its string id
  bool skipped = false;
  bool resizes = false;
  std::vector<int64_t> accesses;
  py::object write_names;  // of arguments given by name; only where Python calls

  int64_t access(size_t position) const { return position < accesses.size() ? accesses[position] : kRead; }
};

/// Name an overload as Python does: aten.add.Tensor.
inline std::string text_of(const c10::OperatorName& name) {
  std::string text = name.name;
  const size_t colons = text.find("::");
  if (colons != std::string::npos) {
    text.replace(colons, 2, ".");
  }
  return text + "." + (name.overload_name.empty() ? "default" : name.overload_name);
}

/// Describe what the dispatch key sees. Views make no bytes; the others are those of `UNSEEN` in interception/kinds.py.
inline Kind describe(const c10::FunctionSchema& schema, const py::object& strings) {
  static const std::set<std::string> unseen = {"aten::detach", "aten::lift_fresh", "aten::alias"};
  static const std::set<std::string> resizing = {"aten::resize_", "aten::resize_as_", "aten::set_",
                                                 "aten::_resize_output_"};
  Kind kind;
  bool aliases = false, writes = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const bool write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    aliases |= argument.alias_info() != nullptr;
    writes |= write;
    kind.accesses.push_back(write ? kWrite : kRead);
  }
  const std::string& name = schema.name();
  kind.skipped = (aliases && !writes) || unseen.count(name) != 0 || name.rfind("profiler::", 0) == 0;
  kind.resizes = writes && (schema.overload_name().find("out") != std::string::npos || resizing.count(name) != 0);
  kind.text = text_of(schema.operator_name());
  kind.name = kind.skipped ? NONE : integer(strings(kind.text).ptr());
  return kind;
}

/// Describe what a dispatch mode hands on, from a `memwatch.record.python.ops.OpKind`.
inline Kind describe(const py::object& python_kind, const py::object& strings) {
  Kind kind;
  kind.text = py::str(python_kind.attr("name"));
  kind.name = integer(strings(kind.text).ptr());
  kind.resizes = py::bool_(python_kind.attr("resizes"));
  kind.write_names = python_kind.attr("write_names");
  for (const auto& access : python_kind.attr("accesses")) {
    kind.accesses.push_back(integer(access.ptr()));
  }
  return kind;
}

}  // namespace memwatch
