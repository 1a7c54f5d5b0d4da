#include "kernels_impl.h"

namespace mtrains {

const KernelTable* portable_kernels() { return &kKernels; }

}  // namespace mtrains
