#include <utility>
#include <vector>

#include "check.h"
#include "mtrains/appended_places.h"

using namespace mtrains;

namespace {

using Entries = std::vector<std::pair<RowKey, Location>>;

Entries entries_of(AppendedPlaces& places, std::uint64_t epoch) {
  Entries entries;
  places.for_each(epoch, [&](RowKey key, Location location) { entries.emplace_back(key, location); });
  return entries;
}

}  // namespace

TEST(the_last_append_of_a_row_counts_wherever_in_its_segment_it_went) {
  AppendedPlaces places;
  SegmentPlaces first, second;
  first.add(7, make_location(3, 6, 0));
  first.add(5, make_location(3, 6, 1));
  first.add(7, make_location(3, 2, 9));  // the open block of another layout
  second.add(5, make_location(1, 0, 0));
  second.add((RowKey{1} << 46) - 2, make_location(1, 0, 1));
  places.add(4, 3, std::move(first));
  CHECK((entries_of(places, 4) == Entries{{5, make_location(3, 6, 1)}, {7, make_location(3, 2, 9)}}));
  places.add(4, 1, std::move(second));
  places.settle();
  CHECK((entries_of(places, 4) == Entries{{5, make_location(1, 0, 0)},
                                          {7, make_location(3, 2, 9)},
                                          {(RowKey{1} << 46) - 2, make_location(1, 0, 1)}}));
}

TEST(later_epochs_are_kept_apart_and_forgotten_apart) {
  AppendedPlaces places;
  for (const std::uint64_t epoch : {3, 1, 2}) {
    SegmentPlaces one;
    one.add(8, make_location(static_cast<std::uint32_t>(epoch), 0, 0));
    places.add(epoch, static_cast<std::uint32_t>(epoch), std::move(one));
  }
  CHECK((entries_of(places, 0) == Entries{}));
  CHECK((entries_of(places, 2) == Entries{{8, make_location(2, 0, 0)}}));
  places.forget(2);
  CHECK((entries_of(places, 2) == Entries{}));
  CHECK((entries_of(places, 3) == Entries{{8, make_location(3, 0, 0)}}));
}

TEST(rows_that_wait_are_few) {
  AppendedPlaces places;
  std::uint32_t segment = 0;
  while (!places.overdue()) {
    SegmentPlaces rows;
    for (std::uint32_t i = 0; i < 4000; ++i) rows.add(i, make_location(++segment, 0, 0));
    places.add(1, segment, std::move(rows));
    CHECK(segment < 1000000);
  }
  places.settle();
  CHECK(!places.overdue());
}

TEST_MAIN()
