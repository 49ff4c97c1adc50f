// The facts about an overload that the recorder needs, computed once: the compiled twin of `OpKind` in
// record/interception.py.
#pragma once

#include <ATen/core/function_schema.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "callbacks.h"
#include "schema.h"

namespace memwatch {

struct Kind {
  std::string text;
  int64_t name = kNone;  // its string id
  bool skipped = false;
  bool is_view = false;  // a view whose node is noted, if Python passes it on
  bool is_lift = false;  // likewise: a tensor that torch made from Python's data
  bool resizes = false;
  std::vector<int64_t> accesses;
  std::vector<std::pair<size_t, int64_t>>
      numbers;             // positions of arguments whose numbers are recorded, and which they are
  py::object write_names;  // of arguments given by name; only for calls from Python

  int64_t access(size_t position) const { return position < accesses.size() ? accesses[position] : kAccessRead; }
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

/// Describe an op that the dispatch key sees. Views, which make no bytes, and `UNSEEN` of record/interception.py get no
/// row.
inline Kind describe(const c10::FunctionSchema& schema, const py::object& string_id) {
  static const std::set<std::string> unseen = {"aten::detach", "aten::alias"};
  static const std::set<std::string> resizing = {"aten::resize_", "aten::resize_as_", "aten::set_",
                                                 "aten::_resize_output_"};
  static const std::set<std::string> changing_sizes = {"aten::squeeze_", "aten::unsqueeze_"};
  Kind kind;
  bool aliases = false, writes = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const bool write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    aliases |= argument.alias_info() != nullptr;
    writes |= write;
    kind.accesses.push_back(write ? kAccessWrite : kAccessRead);
  }
  const std::string& name = schema.name();
  const auto& arguments = schema.arguments();
  if (!arguments.empty() && arguments[0].type()->kind() == c10::TypeKind::TensorType &&
      changing_sizes.count(name) == 0) {
    for (size_t position = 0; position < arguments.size(); ++position) {
      const std::string& its = arguments[position].name();
      if (const std::string type = arguments[position].type()->str();
          type != "int" && type != "int[]" && type != "int?" && type != "int[]?") {
        continue;
      }
      if (its == "dim" || its == "dims") {
        kind.numbers.emplace_back(position, kNumberDimension);
      } else if (its == "reduction") {
        kind.numbers.emplace_back(position, kNumberReduction);
      }
    }
  }
  kind.skipped = (aliases && !writes) || unseen.count(name) != 0 || name.rfind("profiler::", 0) == 0;
  kind.resizes = writes && (schema.overload_name().find("out") != std::string::npos || resizing.count(name) != 0);
  kind.text = text_of(schema.operator_name());
  kind.name = kind.skipped ? kNone : integer(string_id(kind.text).ptr());
  return kind;
}

/// Describe an op that Python passes on.
inline Kind describe(const PythonKind& python_kind, const py::object& string_id) {
  Kind kind;
  kind.text = python_kind.name();
  kind.is_view = python_kind.is_view();
  kind.is_lift = python_kind.is_lift();
  kind.skipped = kind.is_view || kind.is_lift;
  kind.name = kind.skipped ? kNone : integer(string_id(kind.text).ptr());
  kind.resizes = python_kind.resizes();
  kind.write_names = python_kind.write_names();
  for (const auto& number : python_kind.numbers()) {
    const py::tuple pair = py::reinterpret_borrow<py::tuple>(number);
    kind.numbers.emplace_back(integer(PyTuple_GET_ITEM(pair.ptr(), 0)), integer(PyTuple_GET_ITEM(pair.ptr(), 1)));
  }
  for (const auto& access : python_kind.accesses()) {
    kind.accesses.push_back(integer(access.ptr()));
  }
  return kind;
}

}  // namespace memwatch
