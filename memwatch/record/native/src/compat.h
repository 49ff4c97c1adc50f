// Differences between versions of torch and of Python. Every other file includes this one and uses the names below.
//
// A check of the headers themselves (for a file or a member) also works for versions that do not exist yet. A version
// number decides only where no such check is possible.
#pragma once

#include <Python.h>
#include <structmember.h>  // PyMemberDef until Python 3.11; needs Python.h before it
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/profiler/orchestration/observer.h>

// torch 2.11 and older declare autograd's Node in function.h
#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else
#include <torch/csrc/autograd/function.h>
#endif

namespace memwatch::compat {

/// Return the profiler of this thread, or null. torch 2.15 has `getTLS()` in place of `get(/*global=*/false)`.
template <typename State = torch::profiler::impl::ProfilerStateBase>
State* profiler_of_this_thread() {
  if constexpr (requires { State::getTLS(); }) {
    return State::getTLS();
  } else {
    return State::get(/*global=*/false);
  }
}

/// Return the Python object of a function written in Python. An older node owns the object, and its `pyobj()` returns
/// another object.
template <typename Node = torch::autograd::PyNode>
PyObject* object_of(const Node& node) {
  if constexpr (requires { node.obj; }) {
    return node.obj;
  } else {
    return node.pyobj();
  }
}

/// Return the offset in bytes of the instruction that a frame runs. Python 3.11 has a function for it.
inline int last_instruction(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti < 0 ? frame->f_lasti : frame->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT));
#endif
}

/// Return the object of a weak reference, owned, or null if the object is gone. Python 3.13 deprecates
/// PyWeakref_GetObject.
inline PyObject* referent_of(PyObject* reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = nullptr;
  static_cast<void>(PyWeakref_GetRef(reference, &referent));
  return referent;
#else
  PyObject* referent = PyWeakref_GetObject(reference);
  return referent == Py_None ? nullptr : Py_NewRef(referent);
#endif
}

/// Return true if the object of a weak reference is gone.
inline bool is_dead(PyObject* reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = referent_of(reference);
  Py_XDECREF(referent);
  return referent == nullptr;
#else
  return PyWeakref_GetObject(reference) == Py_None;
#endif
}

}  // namespace memwatch::compat
