#include "kernel_table.h"

#if defined(__AVX512F__)
#include "kernels_impl.h"

namespace mtrains {
const KernelTable* avx512_kernels() { return &kKernels; }
}  // namespace mtrains
#else
namespace mtrains {
const KernelTable* avx512_kernels() { return nullptr; }  // not an x86 build
}  // namespace mtrains
#endif
