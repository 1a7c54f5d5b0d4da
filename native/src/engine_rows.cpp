// Rows read and written from outside training.
#include <algorithm>
#include <cstring>

#include "mtrains/engine.h"
#include "mtrains/errors.h"

namespace mtrains {
namespace {

void check_rows(const Table& table, const std::int64_t* rows, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (rows[i] < 0 || static_cast<std::uint64_t>(rows[i]) >= table.num_rows) {
      throw std::out_of_range("table '" + table.name + "': index " + std::to_string(rows[i]) +
                              " at position " + std::to_string(i) + " is out of range [0, " +
                              std::to_string(table.num_rows) + ")");
    }
  }
}

}  // namespace

void Engine::read_rows(std::uint32_t number, const std::int64_t* rows, std::size_t n, float* out) {
  const Pass pass(*this);
  Table& table = table_at(number);
  check_rows(table, rows, n);
  store_->settle_residency();
  const RecordLayout layout = table.record();
  const std::uint32_t slot = 0;
  store_->peek(table, rows, n, [&](std::size_t i, const std::byte* record) {
    load_rows(layout, record, &slot, 1, out + i * layout.dim, layout.dim);
  });
}

void Engine::read_records(std::uint32_t number, const std::int64_t* rows, std::size_t n, std::byte* out) {
  const Pass pass(*this);
  Table& table = table_at(number);
  check_rows(table, rows, n);
  store_->settle_residency();
  const std::size_t stride = table.record().stride();
  store_->peek(table, rows, n, [&](std::size_t i, const std::byte* record) {
    std::memcpy(out + i * stride, record, stride);
  });
}

void Engine::write_rows(std::uint32_t number, const std::int64_t* rows, std::size_t n, const float* values) {
  const Pass pass(*this);
  const Changing changing(*this);
  Table& table = table_at(number);
  check_rows(table, rows, n);
  store_->settle_residency();
  BatchPlan plan;
  plan.build({rows, n, true}, table.num_rows, /*padding_row=*/-1);
  const RecordLayout layout = table.record();
  std::vector<std::uint32_t> slots;
  std::uint64_t capacity = store_->pass_capacity(table);
  for (std::uint64_t begin = 0; begin < plan.num_unique();) {
    const std::uint64_t count = std::min(capacity, plan.num_unique() - begin);
    slots.assign(count, 0);
    store_->next_clock();
    if (!locate(table, plan.rows.data() + begin, count, slots.data(), Bring::kAgain)) {
      if (capacity == 1)
        throw CapacityError("table '" + table.name + "': no slot could be freed in the compute tier");
      capacity = std::max<std::uint64_t>(1, capacity / 2);
      continue;
    }
    store_->settle_owed(table, slots.data(), count);
    ++table.version;
    store_->add_dirty(store_->mark_dirty(table, slots.data(), 0, count));
    // Records of a device are changed in a copy of them.
    DeviceRecords* device = table.device();
    std::vector<std::byte> copies(device != nullptr ? count * layout.stride() : 0);
    if (device != nullptr) device->load(slots.data(), count, copies.data());
    for (std::uint64_t u = 0; u < count; ++u) {
      // Of duplicates the last one wins.
      const std::uint32_t position = plan.positions[plan.csr[begin + u + 1] - 1];
      store_row(layout, values + std::size_t{position} * layout.dim,
                device != nullptr ? copies.data() + u * layout.stride()
                                  : table.records() + slots[u] * layout.stride());
    }
    if (device != nullptr) device->store(slots.data(), count, copies.data());
    begin += count;
  }
}

std::uint64_t Engine::touched_rows(std::uint32_t number, std::uint64_t begin, std::size_t limit,
                                   std::vector<std::int64_t>& rows) {
  const Pass pass(*this);
  Table& table = table_at(number);
  store_->settle_residency();
  return store_->touched_rows(table, begin, limit, rows);
}

}  // namespace mtrains
