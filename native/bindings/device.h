// A device that Python drives, as the core sees it.
#pragma once

#include <memory>
#include <vector>

#include "arrays.h"
#include "mtrains/slot_tier.h"

namespace mtrains {

// Python's TierSpec: (kind, bytes, set_aside, memory or None, device or None, limit or None).
std::vector<TierSpec> tiers_from(const nb::sequence& tiers);

// DeviceCompute(object): the compute of one call; see mtrains/_native.pyi for what is called with what.
void bind_device(nb::module_& m);

}  // namespace mtrains
