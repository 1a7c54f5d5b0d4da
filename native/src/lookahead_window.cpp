#include "mtrains/lookahead_window.h"

#include "mtrains/errors.h"

namespace mtrains {

std::uint32_t LookaheadWindow::enter() {
  if (end() >= kNoUse - 1)
    throw StateError("a lookahead window numbers at most 2^32 - 2 batches; begin anew");
  begins_.push_back(end_occurrence());
  return end() - 1;
}

}  // namespace mtrains
