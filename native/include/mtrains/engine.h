// Tables, slots, directory and log of one open store, and the passes of training over them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mtrains/batch_plan.h"
#include "mtrains/kernels.h"
#include "mtrains/row_store.h"
#include "mtrains/thread_pool.h"
#include "mtrains/ticket.h"

namespace mtrains {

// One feature of a forward: which table, how its bags are pooled, where in a row of the output.
struct FeatureSpec {
  std::uint32_t table = 0;
  PoolMode mode = PoolMode::kSum;
  std::size_t out_column = 0;
};

// One feature of a lookup that was made: its plan, kept for backward and update.
struct FeatureLookup {
  std::uint32_t table = 0;
  PoolMode mode = PoolMode::kSum;
  BatchPlan plan;
  std::vector<std::int64_t> offsets;  // [B + 1], from 0
  std::vector<float> counts;          // [B] for mean and max
  std::uint64_t version = 0;          // of the table at the forward
  std::uint64_t generation = 0;       // of the slots that the plan names
};

struct Lookup {
  std::vector<FeatureLookup> features;
};

struct ForwardInput {
  // The indices [begin, begin + size).
  IndexSpan part(std::uint64_t begin, std::uint64_t size) const {
    IndexSpan span = indices;
    span.data = static_cast<const char*>(span.data) + begin * (span.is_int64 ? 8 : 4);
    span.size = size;
    return span;
  }

  IndexSpan indices;
  IndexSpan offsets;  // data null: every bag has bag_size indices
  bool include_last_offset = false;
  std::uint64_t num_bags = 0;  // of each feature
  std::uint64_t bag_size = 0;
  const float* per_sample_weights = nullptr;  // [indices], kSum only
  float* out = nullptr;                       // float32[num_bags, out_stride]
  std::size_t out_stride = 0;
  std::int64_t* argmax =
      nullptr;  // int64[num_bags, D] for each kMax feature in turn, positions within the feature; or null
  bool keep = false;
  DeviceCompute* device =
      nullptr;  // of a store whose compute tier is on a device; out, weights and argmax are its own
};

// One table's part of a step. Either a lookup with the gradient of its output, or sums by row.
struct TableUpdate {
  std::uint32_t table = 0;
  UpdateTask scalars;  // optimizer, decay, lr, ...; the engine fills the rest
  std::shared_ptr<Lookup> lookup;
  std::size_t feature = 0;
  const float* grad = nullptr;
  std::size_t grad_stride = 0;
  const float* per_sample_weights = nullptr;
  const std::int64_t* argmax = nullptr;
  const std::uint64_t* rows = nullptr;  // [num_rows] unique
  const float* sums = nullptr;          // float32[num_rows, D]
  std::uint64_t num_rows = 0;
  float scale = 1.0f;
  std::vector<float> divided;  // the engine's: of a mean, grad over the counts of the bags
};

struct RowSums {
  std::vector<std::int64_t> rows;  // ascending
  std::vector<float> sums;         // [U, D]
};

struct EngineTimes {
  double compute_seconds = 0, plan_seconds = 0, move_seconds = 0;
  double stage_seconds = 0;        // of the threads that stage, beside passes
  double stage_read_seconds = 0;   // of these, waiting for reads of the log
  double stage_stall_seconds = 0;  // ... and for room in it
};

// What became of tickets.
struct TicketCounters {
  std::uint64_t staged = 0;         // rows brought and pinned
  std::uint64_t used = 0;           // found by their forward, staged
  std::uint64_t used_unstaged = 0;  // ... planned only
  std::uint64_t cancelled = 0;      // unpinned, because a pass needed the slots
  std::uint64_t expired = 0;        // ended without a forward
};

// Thread-safe. One pass (forward, step, write_rows, ...) runs at a time; the writer thread's calls come
// between passes, and inside one only while it waits for room in the log.
// Devices and arenas may call Python, which may run a signal handler or a finalizer that uses the store
// again: StateError, where a lock would wait for itself.
class Engine {
 public:
  // tiers: from fast to slow; the first computes.
  Engine(std::vector<TierSpec> tiers, int num_threads, std::uint32_t incarnation, std::uint64_t epoch,
         std::uint32_t max_pending, PolicyKind eviction = PolicyKind::kLru);
  ~Engine();
  // Whoever waits gets StateError, later calls too. Memory, descriptors and threads are given back.
  void close();
  void set_num_threads(int num_threads);

  // --- tables
  std::uint32_t add_table(const std::string& name, std::uint64_t num_rows, std::uint32_t dim,
                          WeightType dtype, const RowInit& init, const TableBudgets& budgets = {});
  std::uint16_t add_layout(std::uint32_t table, std::uint32_t state_floats, float initial_state);
  void use_layout(std::uint32_t table, std::uint16_t layout);
  void set_update_count(std::uint32_t table, std::uint64_t count);

  // --- training
  // Throws std::out_of_range (a bad index) and std::invalid_argument (bad offsets) before anything has
  // changed.
  std::shared_ptr<Lookup> forward(const std::vector<FeatureSpec>& features, const ForwardInput& input);
  // out: float32[positions of the feature]. StateError if the table changed since the forward.
  void weight_grad(Lookup& lookup, std::size_t feature, const float* grad, std::size_t grad_stride,
                   float* out, DeviceCompute* device = nullptr);
  // Sums by row of a lookup's occurrences, going on from `prior`.
  RowSums row_sums(TableUpdate source, const std::int64_t* prior_rows, const float* prior_sums,
                   std::size_t num_prior);
  // device: of a store whose compute tier is on one; gradients and sums are its own then.
  void step(std::vector<TableUpdate>& updates, DeviceCompute* device = nullptr);

  // --- lookups that are known before their forward; from any thread
  // What the window needs of a lookup: its rows, but of resident tables, which none leaves. Throws as its
  // forward would, as far as it looks.
  std::shared_ptr<Ticket> foresee(const std::vector<FeatureSpec>& features, const ForwardInput& input);
  // Plans the lookup of a ticket, brings its rows and pins them, unless pins would take more than `share` of
  // the compute tier or it was cancelled: false then, and its forward brings what is not there. One at a
  // time. If it throws the ticket is as after false.
  bool stage(const std::shared_ptr<Ticket>& ticket, const std::vector<FeatureSpec>& features,
             const ForwardInput& input, double share);
  // The ticket's forward will not come. Safe to repeat.
  void end(const std::shared_ptr<Ticket>& ticket);
  // The window of batches to come, by which rows are evicted. False if somebody else has begun one.
  bool begin_window();
  void end_window();
  void enter_window(const std::vector<std::shared_ptr<Ticket>>& batch);  // the next one
  void leave_window();                                                   // the oldest one
  TicketCounters ticket_counters();

  // --- rows
  void read_rows(std::uint32_t table, const std::int64_t* rows, std::size_t n, float* out);
  void read_records(std::uint32_t table, const std::int64_t* rows, std::size_t n, std::byte* out);
  void write_rows(std::uint32_t table, const std::int64_t* rows, std::size_t n, const float* values);
  std::uint64_t touched_rows(std::uint32_t table, std::uint64_t begin, std::size_t limit,
                             std::vector<std::int64_t>& rows);

  // Ends the present epoch: what is dirty belongs to the returned one. StateError while rows of the one
  // before are owed, and after a step that failed half way.
  // 0, and nothing changed, while a step or write_rows of another thread waits for room: its rows would be of
  // both.
  std::uint64_t begin_checkpoint();
  // Appends up to max_rows owed rows, once the log has room, for which it waits so long; returns how many
  // remain.
  std::uint64_t sweep(std::size_t max_rows, double timeout_seconds);

  // --- the writer thread
  // Waits until `at_least` segments are sealed, for wake(), or until a pass or sweep needs room; takes what
  // is sealed then, if anything. One thread calls it.
  std::vector<std::shared_ptr<PendingSegment>> next_sealed(std::size_t max_group, double timeout_seconds,
                                                           std::size_t at_least = 1);
  void wake();
  void publish(const std::vector<std::uint32_t>& numbers, const std::vector<std::uint64_t>& offsets);
  void requeue(const std::vector<std::shared_ptr<PendingSegment>>& segments);
  void fail(int code, const std::string& message);
  void recover();

  // Runs `call` with the store's state locked: everything short that has no place of its own here.
  template <typename Call>
  auto locked(const Call& call) {
    const auto lock = enter();
    const Inside inside(locked_by_);
    return call(*store_);
  }
  EngineTimes times();
  std::uint64_t version(std::uint32_t table);

 private:
  struct Located;
  // What planning needs of a table.
  struct TableShape {
    std::uint64_t num_rows;
    std::int64_t padding_row;
    bool resident;
  };

  // The scope in which a thread may not enter again.
  class Inside {
   public:
    explicit Inside(std::atomic<std::thread::id>& thread) : thread_(thread) {
      thread_ = std::this_thread::get_id();
    }
    ~Inside() { thread_ = std::thread::id(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    std::atomic<std::thread::id>& thread_;
  };

  // The scope of a pass: nobody else's pass runs, and the state is locked except while the pass waits for
  // room.
  class Pass {
   public:
    explicit Pass(Engine& engine)
        : pass_(engine.unless_inside(engine.pass_mutex_)), lock_(engine.enter()), inside_(engine.pass_by_) {
      engine.pass_lock_ = &lock_;
    }

   private:
    std::lock_guard<std::mutex> pass_;
    std::unique_lock<std::mutex> lock_;
    Inside inside_;
  };

  // The scope of what changes rows, within a pass.
  class Changing {
   public:
    explicit Changing(Engine& engine) : engine_(engine) { engine_.changing_ = true; }
    ~Changing() { engine_.changing_ = false; }
    Changing(const Changing&) = delete;
    Changing& operator=(const Changing&) = delete;

   private:
    Engine& engine_;
  };

  // The scope of a pass that stages: it waits for emulated devices when it holds no lock any more.
  class Beside {
   public:
    Beside(Engine& engine, OwedWaits* owed) : engine_(engine) {
      engine_.store_->defer_waits(owed);
      engine_.beside_ = true;
    }
    ~Beside() {
      engine_.store_->defer_waits(nullptr);
      engine_.beside_ = false;
    }
    Beside(const Beside&) = delete;
    Beside& operator=(const Beside&) = delete;

   private:
    Engine& engine_;
  };

  std::unique_lock<std::mutex> enter();
  // Returns the mutex; throws StateError if this thread is inside already.
  std::mutex& unless_inside(std::mutex& mutex) const;
  void wait_for_room();
  void signal();
  void tell_sealed();
  void check_open() const;
  void check_whole() const;
  Table& table_at(std::uint32_t table);

  void lay_out(const std::vector<FeatureSpec>& features, const ForwardInput& input, Lookup& lookup,
               std::vector<std::uint64_t>& begins) const;
  // Whether a forward needs no plan: no gradient will come, and rows are where their ids say.
  static bool plan_free(const Table& table, const ForwardInput& input) {
    return table.resident && !input.keep;
  }
  void find_rows(FeatureLookup& feature, const IndexSpan& indices, bool plan_free, const TicketTable* pinned,
                 std::vector<std::uint32_t>& missing, std::vector<std::uint64_t>& plain_rows);
  // The ticket of this lookup, which is no longer among tickets_, or null.
  std::shared_ptr<Ticket> take_ticket(const Lookup& lookup, const ForwardInput& input,
                                      const std::vector<std::uint64_t>& begins);
  void plan(Ticket& ticket, const std::vector<FeatureSpec>& features, const ForwardInput& input,
            bool for_window);
  bool bring_ahead(const std::shared_ptr<Ticket>& ticket, double share);
  template <typename Call>
  bool beside_passes(const Call& call);
  bool unpin_latest();
  void unpin(Ticket& ticket);
  void unpin_all();
  std::vector<TableShape> shapes_of(const std::vector<FeatureSpec>& features);
  [[noreturn]] void bad_index(const Table& table, std::uint64_t position, std::int64_t value) const;
  void pool_features(const std::vector<std::size_t>& which, Lookup& lookup,
                     const std::vector<FeatureSpec>& features, const ForwardInput& input,
                     const std::vector<std::uint64_t>& begins);
  PoolTask pool_task(std::size_t which, Lookup& lookup, const std::vector<FeatureSpec>& features,
                     const ForwardInput& input, const std::vector<std::uint64_t>& begins);
  void pool_in_pieces(std::size_t which, Lookup& lookup, const std::vector<FeatureSpec>& features,
                      const ForwardInput& input, const std::vector<std::uint64_t>& begins, Bring why);
  void finish_plan(FeatureLookup& feature, bool keep);
  // False, with nothing counted, if the rows do not fit beside what the pass protects; tickets give their
  // slots back before that, the latest first.
  bool bring(Table& table, const std::uint64_t* rows, std::size_t n, std::uint32_t* slots,
             const std::vector<std::uint32_t>& missing, Bring why);
  bool bring_found(FeatureLookup& feature, const std::vector<std::uint32_t>& missing, Bring why);
  bool bring_all(FeatureLookup& feature, Bring why);
  bool locate(Table& table, const std::uint64_t* rows, std::size_t n, std::uint32_t* slots, Bring why);
  std::uint64_t generation(const Table& table) const;
  // Calls run(slot_of_position, begin, end) for consecutive pieces of the feature's positions whose rows fit
  // together.
  void each_piece(FeatureLookup& feature,
                  const std::function<void(const std::uint32_t*, std::uint64_t, std::uint64_t)>& run);

  void divide_by_counts(TableUpdate& update);
  GradSource grad_source(const TableUpdate& update) const;
  bool locate_updates(std::vector<Located>& located);
  void run_updates(const std::vector<Located*>& located, DeviceCompute* device);
  void run_on_device(const Located& located, DeviceCompute& device);
  UpdateTask update_task(const Located& located) const;
  void update_in_pieces(Located& located, DeviceCompute* device, bool* changed);

  std::mutex gate_;  // first come, first served before mutex_, so that passes cannot starve the writer thread
  std::mutex mutex_;             // guards all state below
  std::mutex pass_mutex_;        // one pass at a time, also while it waits for room; taken before gate_
  std::mutex staging_mutex_;     // one ticket is staged at a time; taken before pass_mutex_
  ReadBuffers staging_buffers_;  // GUARDED_BY(staging_mutex_)
  std::vector<std::shared_ptr<Ticket>> tickets_;  // that a forward may take, in the order of their batches
  TicketCounters ticket_counters_;
  bool has_window_ = false;
  bool beside_ = false;                                // the pass in progress stages
  std::unique_lock<std::mutex>* pass_lock_ = nullptr;  // of the pass in progress
  std::atomic<std::thread::id> pass_by_, locked_by_;   // who is inside; a pass that waits for room still is
  std::condition_variable room_;
  ThreadPool threads_;
  std::unique_ptr<RowStore> store_;               // none once closed
  const std::shared_ptr<AppendedPlaces> places_;  // of its log
  bool closed_ = false;
  bool changing_ = false;  // a step or write_rows is in progress
  bool torn_ = false;      // a step failed after it had changed rows
  int failure_code_ = 0;
  std::string failure_;
  EngineTimes times_;
  // What next_sealed() waits for: apart from mutex_, which a pass may hold for long. Taken last.
  std::mutex signal_mutex_;
  std::condition_variable signal_;
  std::size_t num_sealed_ = 0;  // of the log, guarded by signal_mutex_
  bool woken_ = false;          // too
};

}  // namespace mtrains
