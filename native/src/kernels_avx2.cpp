#include "kernel_table.h"

#if defined(__AVX2__)
#include "kernels_impl.h"

namespace mtrains {
const KernelTable* avx2_kernels() { return &kKernels; }
}  // namespace mtrains
#else
namespace mtrains {
const KernelTable* avx2_kernels() { return nullptr; }  // not an x86 build
}  // namespace mtrains
#endif
