// Helpers for Python objects: interned names, integers, and the interpreter's lock.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "compat.h"

namespace memwatch {

namespace py = pybind11;

/// Hold the interpreter's lock, in any thread.
class Locked {
 public:
  Locked() : state_(PyGILState_Ensure()) {}
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  PyGILState_STATE state_;
};

/// Return an owned object, or throw the Python error that is set.
inline py::object owned(PyObject* object) {
  if (object == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(object);
}

/// Return whether an object is a tensor. THPVariable_Check calls `__instancecheck__` for all classes but Tensor itself:
/// that needs memory, and its error would reach the program.
inline bool is_tensor(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

/// Make a Python object, also if Python has just run out of memory.
///
/// Autograd calls the hooks of saved tensors with Python objects, and a dispatch mode returns them. Without hooks and
/// modes it would not need them, so a failing allocation of one must not reach the program. A block of memory is kept
/// back for that case.
///
/// make: makes the object. It may be called twice, so it must not use up what it makes the object of.
template <typename Make>
py::object made_with_reserve(const Make& make) {
  constexpr size_t kReserveBytes = 4096;  // a tensor's object takes less than 200
  static void* reserve = std::malloc(kReserveBytes);
  try {
    return make();
  } catch (const c10::OutOfMemoryError&) {
    PyErr_Clear();
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_MemoryError)) {
      throw;
    }
  }
  std::free(std::exchange(reserve, nullptr));
  py::object made = make();
  reserve = std::malloc(kReserveBytes);
  return made;
}

inline py::object python_tensor(const at::Tensor& tensor) {
  return made_with_reserve([&] { return owned(THPVariable_Wrap(tensor)); });
}

inline int64_t integer(PyObject* number) {
  const int64_t value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

inline py::object python_integer(int64_t value) { return owned(PyLong_FromLongLong(value)); }

/// The name of an attribute, interned once.
class Name {
 public:
  explicit Name(const char* text) : text_(PyUnicode_InternFromString(text)) {}

  py::object of(PyObject* owner) const { return owned(PyObject_GetAttr(owner, text_)); }
  bool truth_of(PyObject* owner) const { return PyObject_IsTrue(of(owner).ptr()) == 1; }

  void set(PyObject* owner, PyObject* value) const {
    if (PyObject_SetAttr(owner, text_, value) != 0) {
      throw py::error_already_set();
    }
  }

 private:
  PyObject* text_;  // lives as long as the interpreter
};

/// A slot of a Python class. It is found once; reading it needs no look-up.
class Slot {
 public:
  Slot(const py::object& type, const char* name) {
    const py::object member = type.attr(name);
    TORCH_CHECK(Py_IS_TYPE(member.ptr(), &PyMemberDescr_Type), name, " is no slot");
    offset_ = reinterpret_cast<PyMemberDescrObject*>(member.ptr())->d_member->offset;
  }

  int64_t of(PyObject* owner) const { return integer(object_of(owner)); }

  /// Return the slot's value, borrowed.
  PyObject* object_of(PyObject* owner) const {
    PyObject* value = *at(owner);
    TORCH_CHECK(value != nullptr, "a slot is empty");
    return value;
  }

  void set(PyObject* owner, int64_t value) const { set(owner, python_integer(value)); }
  void set(PyObject* owner, py::object value) const { Py_XDECREF(std::exchange(*at(owner), value.release().ptr())); }

 private:
  PyObject** at(PyObject* owner) const {
    return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(owner) + offset_);
  }

  Py_ssize_t offset_;
};

}  // namespace memwatch
