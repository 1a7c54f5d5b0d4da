// The policies by name.
#pragma once

#include <cstdint>
#include <memory>

#include "mtrains/eviction_policy.h"
#include "mtrains/lfu_policy.h"

namespace mtrains {

enum class PolicyKind : std::uint8_t { kLru = 0, kLfu = 1, kS3Fifo = 2 };

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, const LfuSpec& lfu = {});

}  // namespace mtrains
