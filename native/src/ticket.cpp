#include "mtrains/ticket.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mtrains {

void Ticket::add_rows(std::uint32_t number, const std::vector<std::uint64_t>& rows) {
  TicketTable* part = table(number);
  if (part == nullptr) {
    tables.push_back({number, rows, {}});
    return;
  }
  std::vector<std::uint64_t> both;
  std::set_union(part->rows.begin(), part->rows.end(), rows.begin(), rows.end(), std::back_inserter(both));
  part->rows = std::move(both);
}

}  // namespace mtrains
