// A schedule that is changed in place, see `recompute/search.py`.
#pragma once

#include <algorithm>

#include "arrays.h"

namespace memwatch::planner {

/// The first `size[0]` tokens; the rest of the arrays is room to grow.
struct Draft {
  Ints tokens;
  Ints ids;
  Ints size;

  Int length() const { return size[0]; }
  Int room() const { return tokens.size; }
};

/// A draft with arrays of its own.
class OwnDraft {
 public:
  explicit OwnDraft(Int room) : memory_(2 * room + 1) {
    Int* at = memory_.data();
    draft_ = {{at, room}, {at + room, room}, {at + 2 * room, 1}};
  }
  OwnDraft(const OwnDraft&) = delete;
  OwnDraft& operator=(const OwnDraft&) = delete;

  operator const Draft&() const { return draft_; }
  const Draft* operator->() const { return &draft_; }

 private:
  std::vector<Int> memory_;
  Draft draft_;
};

inline void load(const Draft& draft, const Int* tokens, Int count) {
  draft.size[0] = count;
  std::copy_n(tokens, count, draft.tokens.data);
  for (Int step = 0; step < count; ++step) draft.ids[step] = step;
}

inline void copy(const Draft& source, const Draft& target) {
  target.size[0] = source.length();
  std::copy_n(source.tokens.data, source.length(), target.tokens.data);
  std::copy_n(source.ids.data, source.length(), target.ids.data);
}

inline void insert(const Draft& draft, Int at, const Int* tokens, Int count) {
  const Int size = draft.length();
  std::copy_backward(draft.tokens.data + at, draft.tokens.data + size, draft.tokens.data + size + count);
  std::copy_backward(draft.ids.data + at, draft.ids.data + size, draft.ids.data + size + count);
  std::copy_n(tokens, count, draft.tokens.data + at);
  std::fill_n(draft.ids.data + at, count, Int{-1});
  draft.size[0] = size + count;
}

/// Remove one step, or two; `second` is -1 for one.
inline void remove(const Draft& draft, Int first, Int second) {
  Int at = 0;
  for (Int step = 0; step < draft.length(); ++step) {
    if (step == first || step == second) continue;
    draft.tokens[at] = draft.tokens[step];
    draft.ids[at++] = draft.ids[step];
  }
  draft.size[0] = at;
}

}  // namespace memwatch::planner
