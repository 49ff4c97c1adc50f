// Compute each buffer's intervals of allocation from its events; see `peak.py`.
#pragma once

#include "arrays.h"

namespace memwatch::planner {

enum EventKind : Int { MAKE, LOAD, READ, WRITE, UNLOAD };
enum Fault : Int { OK, ABSENT, STALE, LOST };

struct StepEvents {
  Ints indptr;
  Ints step;
  Ints kind;
  Ints version;
  Ints external;
  Ints final_version;
  Int num_steps;
};

struct Intervals {
  Ints buffer;
  Ints first;
  Ints last;
};

class Liveness {
 public:
  Liveness(const StepEvents& events, const Intervals& out) : events_(events), out_(out) {}

  /// List the allocations of all buffers; a fault ends the list, at `fault_step` and `fault_buffer`.
  Fault list() {
    for (Int buffer = 0; buffer + 1 < events_.indptr.size; ++buffer) {
      const Fault fault = walk(buffer);
      if (fault == OK) continue;
      fault_buffer = buffer;
      return fault;
    }
    return OK;
  }

  Int count = 0;
  Int fault_step = -1;
  Int fault_buffer = -1;

 private:
  /// The version that each event, or the first use after it, expects; -1 without a use.
  void find_wanted(Int buffer) {
    const Int begin = events_.indptr[buffer], size = events_.indptr[buffer + 1] - begin;
    wanted_.assign(size + 1, events_.final_version[buffer]);
    for (Int slot = size - 1; slot >= 0; --slot) {
      const Int kind = events_.kind[begin + slot], version = events_.version[begin + slot];
      wanted_[slot] = kind == READ ? version : kind == WRITE ? version - 1 : wanted_[slot + 1];
    }
  }

  void open(Int at, Int buffer, Int first, Int last) {
    out_.buffer[at] = buffer;
    out_.first[at] = first;
    out_.last[at] = last;
  }

  Fault walk(Int buffer) {
    find_wanted(buffer);
    Int on_host = -1, current = events_.external[buffer] ? 0 : -1;
    open(count, buffer, -1, -1);
    for (Int event = events_.indptr[buffer]; event < events_.indptr[buffer + 1]; ++event) {
      const Int wanted = wanted_[event - events_.indptr[buffer]], kind = events_.kind[event];
      fault_step = events_.step[event];
      if (kind == MAKE || kind == LOAD) {
        const Int brought = kind == MAKE ? 0 : on_host;
        if (brought < 0) return ABSENT;
        if (!bring(buffer, current, wanted_[event - events_.indptr[buffer] + 1] == brought)) continue;
        current = brought;
        continue;
      }
      if (current < 0) return ABSENT;
      if (kind == UNLOAD) {
        on_host = current;
      } else if (current != wanted) {
        return STALE;
      }
      if (kind == WRITE) current = events_.version[event];
      out_.last[count] = fault_step;
    }
    if (events_.final_version[buffer] >= 0) {
      fault_step = events_.num_steps;
      if (current != events_.final_version[buffer]) return LOST;
      out_.last[count] = events_.num_steps;
    }
    fault_step = -1;
    count += current >= 0;
    return OK;
  }

  /// Begin an allocation; false if the result is dropped at once and the old allocation lives on.
  bool bring(Int buffer, Int current, bool is_wanted) {
    if (current >= 0 && !is_wanted) {  // dropped: listed before the old allocation, which is open still
      open(count + 1, buffer, out_.first[count], out_.last[count]);
      out_.first[count] = out_.last[count] = fault_step;
      ++count;
      return false;
    }
    count += current >= 0;
    open(count, buffer, fault_step, fault_step);
    return true;
  }

  const StepEvents& events_;
  const Intervals& out_;
  std::vector<Int> wanted_;
};

}  // namespace memwatch::planner
