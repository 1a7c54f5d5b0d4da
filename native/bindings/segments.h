// A segment on its way to the file, as Python holds it.
#pragma once

#include <memory>

#include "mtrains/segment_log.h"

namespace mtrains {

struct SealedSegment {
  std::shared_ptr<PendingSegment> pending;
};

}  // namespace mtrains
