#include "mtrains/policies.h"

#include "mtrains/lru_policy.h"
#include "mtrains/s3_fifo_policy.h"

namespace mtrains {

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, const LfuSpec& lfu) {
  switch (kind) {
    case PolicyKind::kLfu:
      return std::make_unique<LfuPolicy>(lfu);
    case PolicyKind::kS3Fifo:
      return std::make_unique<S3FifoPolicy>();
    default:
      return std::make_unique<LruPolicy>();
  }
}

}  // namespace mtrains
