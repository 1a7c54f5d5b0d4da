#include "mtrains/engine.h"

#include <chrono>

#include "mtrains/errors.h"

namespace mtrains {

Engine::Engine(std::vector<TierSpec> tiers, int num_threads, std::uint32_t incarnation, std::uint64_t epoch,
               std::uint32_t max_pending, PolicyKind eviction)
    : threads_(num_threads),
      store_(
          std::make_unique<RowStore>(std::move(tiers), incarnation, epoch, max_pending, threads_, eviction)),
      places_(store_->log().places()) {
  store_->wait_for_room = [this] { wait_for_room(); };
  store_->release_pins = [this] { unpin_all(); };
  store_->log().on_sealed = [this] { tell_sealed(); };
}

Engine::~Engine() { close(); }

void Engine::close() {
  {
    const std::lock_guard<std::mutex> lock(unless_inside(mutex_));
    closed_ = true;
    room_.notify_all();
  }
  signal();
  // What waited has left by now; memory, descriptors and threads go with the last one.
  const std::lock_guard<std::mutex> staging(staging_mutex_);
  const std::lock_guard<std::mutex> pass(pass_mutex_);
  const std::lock_guard<std::mutex> lock(mutex_);
  tickets_.clear();
  store_.reset();
  places_->forget(~std::uint64_t{0});
  threads_.resize(1);
}

std::unique_lock<std::mutex> Engine::enter() {
  const std::lock_guard<std::mutex> gate(unless_inside(gate_));
  std::unique_lock<std::mutex> lock(mutex_);
  check_open();
  return lock;
}

std::mutex& Engine::unless_inside(std::mutex& mutex) const {
  const std::thread::id me = std::this_thread::get_id();
  if (pass_by_ == me || locked_by_ == me) {
    throw StateError(
        "the store is in the middle of another call on this thread; a signal handler or finalizer cannot use "
        "it: set a flag there, and act on it between steps");
  }
  return mutex;
}

void Engine::check_open() const {
  if (closed_) throw StateError("the store is closed");
}

void Engine::set_num_threads(int num_threads) {
  const Pass pass(*this);
  threads_.resize(num_threads);
}

void Engine::wait_for_room() {
  const auto begin = std::chrono::steady_clock::now();
  const auto ready = [this] { return closed_ || failure_code_ != 0 || store_->log().has_room(); };
  signal();
  room_.wait(*pass_lock_, ready);
  (beside_ ? times_.stage_stall_seconds : store_->log().counters().stall_seconds) +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  check_open();
  if (failure_code_ != 0 && !store_->log().has_room()) throw IoError(failure_code_, failure_);
}

Table& Engine::table_at(std::uint32_t table) {
  if (table >= store_->num_tables()) throw std::invalid_argument("no table " + std::to_string(table));
  return store_->table(table);
}

std::uint64_t Engine::version(std::uint32_t table) {
  const auto lock = enter();
  return table_at(table).version;
}

EngineTimes Engine::times() {
  const auto lock = enter();
  return times_;
}

// --- tables

std::uint32_t Engine::add_table(const std::string& name, std::uint64_t num_rows, std::uint32_t dim,
                                WeightType dtype, const RowInit& init, const TableBudgets& budgets) {
  const Pass pass(*this);
  return store_->add_table(name, num_rows, dim, dtype, init, budgets);
}

std::uint16_t Engine::add_layout(std::uint32_t table, std::uint32_t state_floats, float initial_state) {
  const Pass pass(*this);
  table_at(table);
  return store_->add_layout(table, state_floats, initial_state);
}

void Engine::use_layout(std::uint32_t table, std::uint16_t layout) {
  const Pass pass(*this);
  table_at(table);
  store_->next_clock();
  store_->use_layout(table, layout);
}

void Engine::set_update_count(std::uint32_t table, std::uint64_t count) {
  const auto lock = enter();
  table_at(table).update_count = count;
}

std::uint64_t Engine::begin_checkpoint() {
  const auto lock = enter();
  check_whole();
  return changing_ ? 0 : store_->begin_checkpoint();
}

std::uint64_t Engine::sweep(std::size_t max_rows, double timeout_seconds) {
  auto lock = enter();
  if (!store_->log().has_room()) signal();
  room_.wait_for(lock, std::chrono::duration<double>(timeout_seconds),
                 [this] { return closed_ || failure_code_ != 0 || store_->log().has_room(); });
  check_open();
  const std::uint64_t left = store_->sweep(max_rows);
  lock.unlock();
  places_->settle();  // whoever sweeps waits for the device in the end
  return left;
}

void Engine::check_whole() const {
  if (torn_) {
    throw StateError(
        "an earlier step failed half way; go back to a checkpoint with Store.restore, or reopen the store");
  }
}

// --- the writer thread

std::vector<std::shared_ptr<PendingSegment>> Engine::next_sealed(std::size_t max_group,
                                                                 double timeout_seconds,
                                                                 std::size_t at_least) {
  {
    std::unique_lock<std::mutex> lock(signal_mutex_);
    const auto ready = [&] { return woken_ || num_sealed_ >= at_least; };
    if (!ready()) {
      lock.unlock();
      places_->settle();
      lock.lock();
    }
    signal_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), ready);
    woken_ = false;
  }
  const auto lock = enter();
  auto taken = store_->log().take_sealed(max_group);
  tell_sealed();
  return taken;
}

void Engine::wake() {
  unless_inside(signal_mutex_);
  signal();
}

void Engine::signal() {
  const std::lock_guard<std::mutex> lock(signal_mutex_);
  woken_ = true;
  signal_.notify_all();
}

// REQUIRES: mutex_.
void Engine::tell_sealed() {
  const std::lock_guard<std::mutex> lock(signal_mutex_);
  num_sealed_ = store_->log().num_sealed();
  signal_.notify_all();
}

void Engine::publish(const std::vector<std::uint32_t>& numbers, const std::vector<std::uint64_t>& offsets) {
  std::vector<std::shared_ptr<PendingSegment>> published;
  {
    const auto lock = enter();
    for (std::size_t i = 0; i < numbers.size(); ++i)
      published.push_back(store_->log().publish(numbers[i], offsets[i]));
    room_.notify_all();
  }
  for (const auto& segment : published)
    places_->add(segment->header.epoch, segment->header.number, std::move(segment->places));
  if (places_->overdue()) places_->settle();
}

void Engine::requeue(const std::vector<std::shared_ptr<PendingSegment>>& segments) {
  const auto lock = enter();
  store_->log().requeue(segments);
  tell_sealed();
}

void Engine::fail(int code, const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_code_ = code;
  failure_ = message;
  room_.notify_all();
}

void Engine::recover() {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_code_ = 0;
  failure_.clear();
}

}  // namespace mtrains
