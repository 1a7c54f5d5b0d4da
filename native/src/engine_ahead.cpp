// Lookups that are known before their forward: their rows brought and pinned beside the passes.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "engine_tasks.h"
#include "lookup_digest.h"
#include "mtrains/engine.h"
#include "mtrains/errors.h"

namespace mtrains {
namespace {

// Rows that one pass of staging brings, and one lock adds to the window, so that passes of training wait
// shortly.
constexpr std::size_t kRowsAtOnce = 4096;

LookupDigest digest_of(const Lookup& lookup, const ForwardInput& input,
                       const std::vector<std::uint64_t>& begins) {
  LookupHash hash;
  for (std::size_t f = 0; f < lookup.features.size(); ++f) {
    const std::vector<std::int64_t>& offsets = lookup.features[f].offsets;
    hash.add({offsets.data(), offsets.size(), /*is_int64=*/true});
    hash.add(input.part(begins[f], static_cast<std::uint64_t>(offsets.back())));
  }
  return hash.digest();
}

}  // namespace

// --- tickets

std::vector<Engine::TableShape> Engine::shapes_of(const std::vector<FeatureSpec>& features) {
  const auto lock = enter();
  std::vector<TableShape> shapes;
  for (const FeatureSpec& feature : features) {
    const Table& table = table_at(feature.table);
    shapes.push_back({table.num_rows, table.init.padding_row, table.resident});
  }
  return shapes;
}

std::shared_ptr<Ticket> Engine::foresee(const std::vector<FeatureSpec>& features, const ForwardInput& input) {
  auto ticket = std::make_shared<Ticket>();
  plan(*ticket, features, input, /*for_window=*/true);
  return ticket;
}

void Engine::plan(Ticket& ticket, const std::vector<FeatureSpec>& features, const ForwardInput& input,
                  bool for_window) {
  const std::vector<TableShape> shapes = shapes_of(features);
  Lookup lookup;
  lookup.features.resize(features.size());
  std::vector<std::uint64_t> begins;
  lay_out(features, input, lookup, begins);
  ticket.tables_of_features.clear();
  ticket.tables.clear();
  std::vector<BatchPlan> plans(features.size());
  for (std::size_t f = 0; f < features.size(); ++f) {
    ticket.tables_of_features.push_back(features[f].table);
    if (for_window && shapes[f].resident) continue;
    const auto size = static_cast<std::uint64_t>(lookup.features[f].offsets.back());
    const auto bad = plans[f].build(input.part(begins[f], size), shapes[f].num_rows, shapes[f].padding_row);
    if (bad) {
      const auto lock = enter();
      bad_index(table_at(features[f].table), begins[f] + bad->position, bad->value);
    }
    ticket.add_rows(features[f].table, plans[f].rows);
  }
  if (for_window) return;  // ids alone: the plan is made again when it is staged
  ticket.plans = std::move(plans);
  ticket.num_indices = input.indices.size;
  ticket.digest = digest_of(lookup, input, begins);
}

std::shared_ptr<Ticket> Engine::take_ticket(const Lookup& lookup, const ForwardInput& input,
                                            const std::vector<std::uint64_t>& begins) {
  const auto may_be = [&](const Ticket& ticket) {
    return ticket.state != Ticket::State::kStaging && ticket.num_indices == input.indices.size &&
           std::equal(
               ticket.tables_of_features.begin(), ticket.tables_of_features.end(), lookup.features.begin(),
               lookup.features.end(),
               [](std::uint32_t table, const FeatureLookup& feature) { return table == feature.table; });
  };
  const auto candidate =
      std::find_if(tickets_.begin(), tickets_.end(), [&](const auto& t) { return may_be(*t); });
  if (candidate == tickets_.end()) return nullptr;
  const LookupDigest digest = digest_of(lookup, input, begins);
  const auto found = std::find_if(candidate, tickets_.end(), [&](const auto& ticket) {
    return may_be(*ticket) && ticket->digest == digest;
  });
  if (found == tickets_.end()) return nullptr;
  std::shared_ptr<Ticket> ticket = *found;
  tickets_.erase(found);
  ++(ticket->state == Ticket::State::kStaged ? ticket_counters_.used : ticket_counters_.used_unstaged);
  ticket->state = Ticket::State::kEnded;
  return ticket;
}

void Engine::end(const std::shared_ptr<Ticket>& ticket) {
  const auto lock = enter();
  const auto found = std::find(tickets_.begin(), tickets_.end(), ticket);
  if (found != tickets_.end()) {
    ++ticket_counters_.expired;
    tickets_.erase(found);
  }
  unpin(*ticket);
  ticket->state = Ticket::State::kEnded;
}

TicketCounters Engine::ticket_counters() {
  const auto lock = enter();
  return ticket_counters_;
}

// --- pins

void Engine::unpin(Ticket& ticket) {
  for (TicketTable& part : ticket.tables) store_->unpin(part);
}

bool Engine::unpin_latest() {
  const auto latest = std::find_if(tickets_.rbegin(), tickets_.rend(), [](const auto& ticket) {
    return ticket->state == Ticket::State::kStaging || ticket->state == Ticket::State::kStaged;
  });
  if (latest == tickets_.rend()) return false;
  unpin(**latest);
  (*latest)->state = Ticket::State::kUnstaged;
  ++ticket_counters_.cancelled;
  return true;
}

void Engine::unpin_all() {
  while (unpin_latest()) {
  }
}

// --- staging

template <typename Call>
bool Engine::beside_passes(const Call& call) {
  std::array<OwedWaits, kSlotTiers> owed{};
  std::vector<std::shared_ptr<BandwidthLimit>> limits;
  bool result;
  {
    // Waiting for room in the log would keep passes of training waiting too, which may need none.
    auto lock = enter();
    const Stopwatch watch(times_.stage_stall_seconds);
    if (!store_->log().has_room()) signal();
    room_.wait(lock, [this] { return closed_ || failure_code_ != 0 || store_->log().has_room(); });
    check_open();
  }
  {
    const Pass pass(*this);
    store_->settle_residency();
    for (const auto& level : store_->levels()) limits.push_back(level->spec().limit);
    const Beside beside(*this, owed.data());
    result = call();
  }
  for (std::size_t level = 0; level < limits.size(); ++level) {
    if (limits[level] == nullptr) continue;
    limits[level]->wait_read(owed[level].read_until);
    limits[level]->wait_write(owed[level].write_until);
  }
  return result;
}

bool Engine::stage(const std::shared_ptr<Ticket>& ticket, const std::vector<FeatureSpec>& features,
                   const ForwardInput& input, double share) {
  const std::lock_guard<std::mutex> staging(unless_inside(staging_mutex_));
  const auto finish = [&](bool staged, double seconds) {
    const auto lock = enter();
    times_.stage_seconds += seconds;
    if (ticket->state != Ticket::State::kStaging) return staged && ticket->state == Ticket::State::kStaged;
    if (!staged) unpin(*ticket);
    ticket->state = staged ? Ticket::State::kStaged : Ticket::State::kUnstaged;
    ticket_counters_.staged += staged;
    return staged;
  };
  double seconds = 0;
  bool staged = false;
  try {
    const Stopwatch watch(seconds);
    if (ticket->plans.empty()) plan(*ticket, features, input, /*for_window=*/false);
    staged = bring_ahead(ticket, share);
  } catch (...) {
    finish(false, seconds);
    throw;
  }
  return finish(staged, seconds);
}

bool Engine::bring_ahead(const std::shared_ptr<Ticket>& ticket, double share) {
  StagedRows staged;
  std::shared_ptr<BlockReader> reader;
  bool is_there = false;
  const bool fits = beside_passes([&] {
    is_there = ticket->state == Ticket::State::kStaged;
    if (is_there || ticket->state == Ticket::State::kEnded) return false;
    if (std::find(tickets_.begin(), tickets_.end(), ticket) == tickets_.end()) tickets_.push_back(ticket);
    ticket->state = Ticket::State::kStaging;
    if (!store_->begin_staging(*ticket, share, staged)) return false;
    reader = store_->log().second_reader();
    return true;
  });
  if (!fits) return is_there;
  if (!staged.read->empty()) {
    staged.bytes = std::make_unique_for_overwrite<std::byte[]>(staged.num_bytes);
    const auto count = [&] {
      const auto lock = enter();
      store_->log().count(staged.read->counters());
      times_.stage_read_seconds += staged.read->counters().seconds;
    };
    try {
      staged.read->run(reader.get(), staging_buffers_,
                       [&](std::uint32_t tag, std::uint16_t layout, std::span<const std::byte> record) {
                         StagedRows::Row& row = staged.rows[tag];
                         row.layout = layout;
                         std::memcpy(staged.bytes.get() + row.begin, record.data(), record.size());
                       });
    } catch (...) {
      count();
      throw;
    }
    count();
  }
  for (std::size_t which = 0; which < ticket->tables.size(); ++which) {
    const std::size_t n = staged.missing[which].size();
    for (std::size_t begin = 0; begin < n; begin += kRowsAtOnce) {
      if (!beside_passes([&] {
            return ticket->state == Ticket::State::kStaging &&
                   store_->finish_staging(*ticket, which, staged, begin, std::min(n, begin + kRowsAtOnce));
          }))
        return false;
    }
  }
  return true;
}

// --- the window

bool Engine::begin_window() {
  const auto lock = enter();
  return !std::exchange(has_window_, true);
}

void Engine::end_window() {
  const auto lock = enter();
  has_window_ = false;
  store_->clear_window();
}

void Engine::enter_window(const std::vector<std::shared_ptr<Ticket>>& batch) {
  {
    const auto lock = enter();
    store_->window().enter();
  }
  for (const std::shared_ptr<Ticket>& ticket : batch) {
    for (const TicketTable& part : ticket->tables) {
      for (std::size_t begin = 0; begin < part.rows.size(); begin += kRowsAtOnce) {
        const auto lock = enter();
        store_->add_to_window(table_at(part.table), part.rows.data() + begin,
                              std::min(kRowsAtOnce, part.rows.size() - begin));
      }
    }
  }
}

void Engine::leave_window() {
  const auto lock = enter();
  if (store_->window().size() == 0) throw std::invalid_argument("the window has no batch");
  store_->leave_window();
}

}  // namespace mtrains
