// The kernels of views on the dispatch key. Each one notes the node that autograd made for the view, and then calls the
// next kernel.
//
// They take unboxed arguments, because boxing would cost more than the note. There is a kernel for each name in `VIEWS`
// of record/interception.py and for no other op. `tests/native/test_native_twins.py` runs each of them.
#pragma once

#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/diagonal_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/lift_fresh_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unfold_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_as_complex_ops.h>
#include <ATen/ops/view_as_real_ops.h>
#include <ATen/ops/view_ops.h>
#include <torch/library.h>

#include <utility>

namespace memwatch {

/// The kernel of a view; `note` is called first.
template <void (*note)(), typename Op, typename Schema = typename Op::schema>
struct ViewKernel;

template <void (*note)(), typename Op, typename Result, typename... Given>
struct ViewKernel<note, Op, Result(Given...)> {
  static Result run(c10::DispatchKeySet keys, Given... given) {
    note();
    constexpr c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Fake);
    return Op::redispatch(keys & below, std::forward<Given>(given)...);
  }
};

template <void (*note)(), typename Op>
void put_view(torch::Library& library, const char* name) {
  library.impl(name, torch::CppFunction::makeFromUnboxedFunction(&ViewKernel<note, Op>::run));
}

/// Put the kernels into a library of the key's.
template <void (*note)()>
void put_views(torch::Library& library) {
  using namespace at::_ops;
  put_view<note, _reshape_alias>(library, "_reshape_alias");
  put_view<note, as_strided>(library, "as_strided");
  put_view<note, diagonal>(library, "diagonal");
  put_view<note, expand>(library, "expand");
  put_view<note, permute>(library, "permute");
  put_view<note, select_int>(library, "select.int");
  put_view<note, slice_Tensor>(library, "slice.Tensor");
  put_view<note, split_Tensor>(library, "split.Tensor");
  put_view<note, split_with_sizes>(library, "split_with_sizes");
  put_view<note, squeeze>(library, "squeeze");
  put_view<note, squeeze_dim>(library, "squeeze.dim");
  put_view<note, squeeze_dims>(library, "squeeze.dims");
  put_view<note, t>(library, "t");
  put_view<note, transpose_int>(library, "transpose.int");
  put_view<note, unbind_int>(library, "unbind.int");
  put_view<note, unfold>(library, "unfold");
  put_view<note, unsqueeze>(library, "unsqueeze");
  put_view<note, view>(library, "view");
  put_view<note, view_as_complex>(library, "view_as_complex");
  put_view<note, view_as_real>(library, "view_as_real");
}

/// The kernel of `LIFT` in record/interception.py. It calls `note` with the tensor that torch made from Python's data.
template <void (*note)(const at::Tensor&)>
at::Tensor run_lift(c10::DispatchKeySet keys, const at::Tensor& made) {
  constexpr c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Fake);
  at::Tensor lifted = at::_ops::lift_fresh::redispatch(keys & below, made);
  note(lifted);
  return lifted;
}

/// Put it into a library of the key's.
template <void (*note)(const at::Tensor&)>
void put_lift(torch::Library& library) {
  library.impl("lift_fresh", torch::CppFunction::makeFromUnboxedFunction(&run_lift<note>));
}

}  // namespace memwatch
