// Births and deaths of storages: the compiled twin of `Storages.born` in memwatch/record/tables/storages.py, and of
// memwatch/record/python/ledger.py.
//
// The table itself stays a Python object, because other Python code reads it. This class fills the table and keeps its
// figures. The session uses it as the table's `Ledger`.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>

#include "callbacks.h"
#include "schema.h"
#include "stacks.h"
#include "ticks.h"

namespace memwatch {

/// Return whether a tensor is plain: its bytes lie in its own storage, and its sizes are numbers.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_nested() &&
         !tensor.key_set().has(c10::DispatchKey::Python) && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

inline int64_t key_of(const at::Tensor& tensor) {
  return reinterpret_cast<int64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

/// Half of `NEVER` of memwatch/record/tables/storages.py. A limit above this value means that the sampler waits for no
/// birth.
constexpr int64_t kNobodyWaits = int64_t{1} << 61;

/// The figures of one device: `Account` of memwatch/record/tables/storages.py.
struct Account {
  int64_t live_bytes = 0, entry_gone_bytes = 0, handed_on_bytes = 0;
  int64_t watch_bytes = -1, limit_bytes = kNobodyWaits;
  int64_t quiet_bytes = -1, quiet_until_ticks = 0;

  /// Return true if the sampler need not be called for a birth, because the live bytes stay below its limit.
  bool is_quiet(int64_t workspace, int64_t at) const {
    return at < quiet_until_ticks && live_bytes + entry_gone_bytes + workspace <= quiet_bytes;
  }
};

/// A storage that backward made under a memory limit, and that memwatch watches through a tensor. The tensor may die
/// before the storage. This happens when a gradient becomes a parameter's `.grad`.
struct HandedOn {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  Account* account;
  int64_t nbytes;
  bool has_no_tensor = false;
};

class Storages {
 public:
  Storages(py::object watched_storage, py::object watched_tensor)
      : watched_(std::move(watched_storage), std::move(watched_tensor)) {}

  /// Fill a table, which keeps this object, from now on.
  void keep_for(const py::object& table) { table_ = StorageTable(table); }

  int64_t count = 0, entry_count = 0;
  bool hold = true;

  /// Return the figures of a device, by the string id of its name.
  const std::shared_ptr<Account>& account(int64_t device) {
    const auto& [known, figures] = last_account_;  // most programs use one device
    if (known == device) {
      return figures;
    }
    std::shared_ptr<Account>& found = accounts_[device];
    if (!found) {
      found = std::make_shared<Account>();
    }
    last_account_ = {device, found};
    return last_account_.second;
  }

  /// Release every Python object as soon as no tensor is being read.
  void close() {
    closed_ = true;
    if (looks_ == 0) {
      table_ = StorageTable();
    }
  }

  /// Keeps the objects alive that a read of a tensor needs. Python code that runs meanwhile may end the block.
  class Look {
   public:
    explicit Look(std::shared_ptr<Storages> storages) : storages_(std::move(storages)) { ++storages_->looks_; }
    ~Look() {
      if (--storages_->looks_ == 0 && storages_->closed_) {
        storages_->close();
      }
    }

   private:
    std::shared_ptr<Storages> storages_;
  };

  bool any_dead() const { return table_.dead != nullptr && !table_.dead->empty(); }
  /// Return true for a storage that is watched by the first tensor seen on it.
  bool is_by_tensor(PyObject* known) const { return is_exactly(known, watched_.tensor); }
  /// Return true for a storage that is watched by its own Python object.
  bool is_by_storage(PyObject* known) const { return is_exactly(known, watched_.storage); }

  /// Return the entry of the storage at an address (borrowed), or null. The entry of a dead storage does not count: the
  /// address belongs to another storage now.
  PyObject* find(const py::object& key) const {
    PyObject* known = PyDict_GetItemWithError(table_.live.ptr(), key.ptr());
    if (known == nullptr && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    const bool dead = known != nullptr && is_by_storage(known) && compat::is_dead(known);
    return dead ? nullptr : known;
  }

  int64_t number_of(PyObject* known) const { return watched_.number.of(known); }

  /// Return the number of the storage of a plain tensor. A storage that is not known yet counts as older than the
  /// block.
  int64_t number_of(const at::Tensor& tensor, int64_t op) {
    record_deaths(op);
    const py::object key = python_integer(key_of(tensor));
    PyObject* known = find(key);
    const bool by_tensor = known != nullptr && is_by_tensor(known);
    if (known == nullptr || (by_tensor && watched_.address.of(known) != address_of(tensor))) {
      return born(tensor, key, kNone, kOriginBaseline, ticks());
    }
    if (by_tensor && hold) {
      const py::object replaced = py::reinterpret_borrow<py::object>(known);
      hold_one(tensor, replaced);
      return number_of(replaced.ptr());
    }
    return number_of(known);
  }

  /// Watch a known storage by its Python object from now on.
  void hold_one(const at::Tensor& tensor, const py::object& known) {
    const c10::Storage& bytes = tensor.storage();
    const bool counts = table_.is_estimate || address_of(tensor) != 0;
    const int64_t nbytes = counts ? bytes.sym_nbytes().maybe_as_int().value_or(0) : 0;
    const py::object reference = weakly(watched_.storage, owned(THPStorage_Wrap(bytes)));
    for (const Slot* slot : {&watched_.number, &watched_.key, &watched_.device}) {
      slot->set(reference.ptr(), py::reinterpret_borrow<py::object>(slot->object_of(known.ptr())));
    }
    watched_.nbytes.set(reference.ptr(), nbytes);
    if (PyDict_SetItem(table_.live.ptr(), watched_.key.object_of(known.ptr()), reference.ptr()) != 0) {
      throw py::error_already_set();
    }
    Account& there = *account(watched_.device.of(known.ptr()));
    there.live_bytes += nbytes;
    forget_handed_on(number_of(known.ptr()));
  }

  /// Return the number of the storage of a plain and known tensor, else none.
  ///
  /// watch_on: whether to watch a storage of backward through its own Python object if its tensor is gone.
  int64_t watched_number(const at::Tensor& tensor, bool watch_on) {
    PyObject* known = !closed_ && is_plain(tensor) ? find(python_integer(key_of(tensor))) : nullptr;
    if (known == nullptr) {
      return kNone;
    }
    if (is_by_tensor(known)) {
      if (watched_.address.of(known) != address_of(tensor)) {
        return kNone;
      }
      if (watch_on && compat::is_dead(known)) {
        const auto replaced = py::reinterpret_borrow<py::object>(known);
        hold_one(tensor, replaced);
        return number_of(replaced.ptr());
      }
    }
    return number_of(known);
  }

  /// Watch the storages that backward made through their own Python objects, and forget those whose tensors are gone.
  void rewatch(int64_t op) {
    if (closed_) {
      return;
    }
    record_deaths(op);
    hold = true;
    const int64_t since = std::exchange(rewatched_count_, count);
    for (const py::object& known : by_tensor_since(since)) {
      if (const auto tensor = py::reinterpret_steal<py::object>(compat::referent_of(known.ptr()))) {
        shrink(known.ptr());
        hold_one(THPVariable_Unpack(tensor.ptr()), known);
        continue;
      }
      take_off(known.ptr());
      forget_roles(known.ptr());
    }
    for (auto& [number, made] : handed_on_) {
      made.account->handed_on_bytes = 0;
    }
    handed_on_.clear();
  }

  /// Append the birth of the storage of a plain tensor, which lies at the address `key`; return its number.
  int64_t born(const at::Tensor& tensor, const py::object& key, int64_t op, Origin origin, int64_t at) {
    return born(tensor, key, op, origin, at, [] { return int64_t{0}; });
  }

  /// As above. `workspace_bytes()` returns the bytes that the op needed beyond those live after it. It is called only
  /// if the sampler waits for births.
  template <typename Workspace>
  int64_t born(const at::Tensor& tensor, const py::object& key, int64_t op, Origin origin, int64_t at,
               Workspace&& workspace_bytes) {
    const int64_t address = address_of(tensor);
    const int64_t shape = shape_of(tensor), device = device_of(tensor);
    int64_t nbytes = 0;
    py::object reference;
    if (hold || !has_events(tensor)) {
      const c10::Storage& bytes = tensor.storage();
      nbytes = static_cast<int64_t>(bytes.nbytes());
      reference = weakly(watched_.storage, owned(THPStorage_Wrap(bytes)));
    } else {
      nbytes = static_cast<int64_t>(tensor.nbytes());
      reference = weakly(watched_.tensor, owned(THPVariable_Wrap(tensor)));
      watched_.address.set(reference.ptr(), address);
    }
    table_.births->reserve<BirthsRow>(1);  // now, so that the number surely gets its row
    const int64_t storage = count;
    watched_.number.set(reference.ptr(), storage);
    watched_.key.set(reference.ptr(), key);
    const int64_t weight = address != 0 || table_.is_estimate ? nbytes : 0;
    watched_.nbytes.set(reference.ptr(), weight);
    watched_.device.set(reference.ptr(), device);
    Account& there = *account(device);
    put_last(key, reference);
    count = storage + 1;
    there.live_bytes += weight;
    table_.births->add(BirthsRow{.storage = storage,
                                 .op = op,
                                 .time_ticks = at,
                                 .address = address,
                                 .nbytes = nbytes,
                                 .device = device,
                                 .origin = origin,
                                 .shape = shape});
    if (there.limit_bytes < kNobodyWaits && is_by_tensor(reference.ptr())) {
      handed_on_.emplace(storage, HandedOn{tensor.storage().getWeakStorageImpl(), &there, weight});
    }
    if (there.watch_bytes < kNobodyWaits) {
      const int64_t workspace = workspace_bytes();
      const bool is_above =
          is_above_limit(there);  // first: bytes that were handed on and freed since must not count there
      const bool is_watched = there.live_bytes + workspace > there.watch_bytes && !there.is_quiet(workspace, at);
      if (is_above || is_watched) {
        table_.above_watched(device, weight, workspace);
      }
    }
    return storage;
  }

  /// Append the deaths since the last call, each with its own time, whichever thread dropped the last reference.
  void record_deaths(int64_t op) {
    while (any_dead()) {
      table_.deaths->reserve<DeathsRow>(1);  // first: a death that leaves the queue must be written
      const auto [gone, at] = table_.dead->take();
      if (is_by_storage(gone.ptr())) {
        record_death(gone.ptr(), op, at);
      } else {  // it stays known, for another tensor may show its storage still
        shrink(gone.ptr());
        hand_on(number_of(gone.ptr()));
      }
    }
    if (table_.dead != nullptr && table_.dead->any_missed()) {
      record_missed_deaths(op);
    }
  }

  static int64_t address_of(const at::Tensor& tensor) {
    try {
      return reinterpret_cast<int64_t>(tensor.const_data_ptr());
    } catch (const c10::Error&) {
      return 0;
    }
  }

  /// Return the string id of dtype and shape.
  int64_t shape_of(const at::Tensor& tensor) {
    // Python runs again only after the look-up, so only this thread writes `shape_`
    shape_.assign(1, static_cast<int64_t>(tensor.scalar_type()));
    shape_.insert(shape_.end(), tensor.sizes().begin(), tensor.sizes().end());
    const auto known = shapes_.find(shape_);
    if (known != shapes_.end()) {
      return known->second;
    }
    const Key mine = shape_;  // other threads may run while Python runs
    const int64_t id = table_.shape_id(owned(THPVariable_Wrap(tensor)));
    shapes_.emplace(mine, id);
    return id;
  }

 private:
  /// Return whether the allocator reports when this memory is freed. A meta tensor has no memory.
  static bool has_events(const at::Tensor& tensor) { return !tensor.is_meta(); }

  int64_t device_of(const at::Tensor& tensor) {
    const int64_t device = static_cast<int64_t>(tensor.device().type()) << 8 | (tensor.device().index() & 0xff);
    if (last_device_.first == device) {  // most programs use one
      return last_device_.second;
    }
    auto known = devices_.find(device);
    if (known == devices_.end()) {
      known = devices_.emplace(device, table_.device_id(owned(THPVariable_Wrap(tensor)))).first;
    }
    last_device_ = *known;
    return known->second;
  }

  /// Make a weak reference. Calling its class would parse the arguments twice, because of an `__init__` that does
  /// nothing.
  py::object weakly(const py::object& type, const py::object& referent) const {
    const py::object arguments = owned(PyTuple_Pack(2, referent.ptr(), table_.note_death.ptr()));
    auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());
    return owned(of->tp_new(of, arguments.ptr(), nullptr));
  }

  /// Append a weak reference to the table, which is in the order of the births.
  void put_last(const py::object& key, const py::object& reference) const {
    PyObject* live = table_.live.ptr();
    PyObject* there = PyDict_SetDefault(live, key.ptr(), reference.ptr());
    const bool replaces = there != nullptr && there != reference.ptr();  // storages that died unseen
    if (there == nullptr ||
        (replaces && (PyDict_DelItem(live, key.ptr()) != 0 || PyDict_SetItem(live, key.ptr(), reference.ptr()) != 0))) {
      throw py::error_already_set();
    }
  }

  /// Append the deaths that could not be noted when they came, because memory had run out. They get the present time.
  void record_missed_deaths(int64_t op) {
    std::vector<py::object> gone;
    PyObject *key = nullptr, *known = nullptr;
    for (Py_ssize_t place = 0; PyDict_Next(table_.live.ptr(), &place, &key, &known) != 0;) {
      if (is_by_storage(known) && compat::is_dead(known)) {
        gone.push_back(py::reinterpret_borrow<py::object>(known));
      }
    }
    table_.deaths->reserve<DeathsRow>(gone.size());
    table_.dead->none_missed();
    for (const py::object& each : gone) {
      record_death(each.ptr(), op, ticks());
    }
  }

  void record_death(PyObject* gone, int64_t op, int64_t at) {
    take_off(gone);
    shrink(gone);
    const int64_t storage = number_of(gone);
    if (storage < entry_count) {
      Account& there = *account(watched_.device.of(gone));
      there.entry_gone_bytes += watched_.nbytes.of(gone);
      there.watch_bytes -= watched_.nbytes.of(gone);
    }
    table_.deaths->add(DeathsRow{.storage = storage, .op = op, .time_ticks = at});
    forget_roles(gone);
  }

  /// Remove the weak reference of a storage from the table, unless another storage has its address by now.
  void take_off(PyObject* gone) const {
    PyObject* key = watched_.key.object_of(gone);
    if (PyDict_GetItemWithError(table_.live.ptr(), key) == gone) {
      PyDict_DelItem(table_.live.ptr(), key);
    }
  }

  void forget_roles(PyObject* gone) const {
    PyObject* number = watched_.number.object_of(gone);
    if (PyDict_Contains(table_.roles.ptr(), number) == 1) {
      PyDict_DelItem(table_.roles.ptr(), number);
    }
  }

  /// Return the references that watch living storages through tensors, from a storage number on, oldest first.
  std::vector<py::object> by_tensor_since(int64_t number) const {
    std::vector<py::object> found;
    const py::object newest = table_.live.attr("values")().attr("__reversed__")();
    while (PyObject* next = PyIter_Next(newest.ptr())) {  // the loop runs no Python code, so the table stays the same
      auto known = py::reinterpret_steal<py::object>(next);
      if (number_of(known.ptr()) < number) {
        break;
      }
      if (is_by_tensor(known.ptr())) {
        found.push_back(std::move(known));
      }
    }
    std::reverse(found.begin(), found.end());
    return found;
  }

  /// Count a storage for the limit as long as it lives, although the tensor that it was watched through is gone.
  void hand_on(int64_t number) {
    const auto found = handed_on_.find(number);
    if (found == handed_on_.end()) {
      return;
    }
    if (found->second.storage.expired()) {
      handed_on_.erase(found);
      return;
    }
    found->second.has_no_tensor = true;
    found->second.account->handed_on_bytes += found->second.nbytes;
  }

  void forget_handed_on(int64_t number) {
    const auto found = handed_on_.find(number);
    if (found != handed_on_.end()) {
      found->second.account->handed_on_bytes -= found->second.has_no_tensor ? found->second.nbytes : 0;
      handed_on_.erase(found);
    }
  }

  /// Return true if the live bytes are above the limit, including storages that were handed on and still live.
  bool is_above_limit(Account& there) {
    if (there.live_bytes + there.handed_on_bytes <= there.limit_bytes) {
      return false;
    }
    for (auto made = handed_on_.begin(); made != handed_on_.end();) {
      HandedOn& each = made->second;
      const bool is_over = each.has_no_tensor && each.storage.expired();
      each.account->handed_on_bytes -= is_over ? each.nbytes : 0;
      made = is_over ? handed_on_.erase(made) : std::next(made);
    }
    return there.live_bytes + there.handed_on_bytes > there.limit_bytes;
  }

  void shrink(PyObject* gone) { account(watched_.device.of(gone))->live_bytes -= watched_.nbytes.of(gone); }

  static bool is_exactly(PyObject* known, const py::object& type) {
    return reinterpret_cast<PyObject*>(Py_TYPE(known)) == type.ptr();
  }

  const WatchedClasses watched_;
  StorageTable table_;
  int64_t looks_ = 0, rewatched_count_ = 0;
  bool closed_ = false;
  std::unordered_map<Key, int64_t, HashOfKey, SameKey> shapes_;
  std::unordered_map<int64_t, int64_t> devices_;
  std::pair<int64_t, int64_t> last_device_{kNone, kNone};
  std::unordered_map<int64_t, std::shared_ptr<Account>> accounts_;
  std::pair<int64_t, std::shared_ptr<Account>> last_account_{kNone, nullptr};
  std::unordered_map<int64_t, HandedOn> handed_on_;
  Key shape_;
};

}  // namespace memwatch
