// The floating-point mode in which every computation of the core runs.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace mtrains {

// Round to nearest, subnormals kept (FTZ and DAZ off), exceptions masked, for the life of the object.
//
// torch.set_flush_denormal and others change the mode of a thread; rows must not depend on it. The compiler
// may move arithmetic across the constructor, so what is guarded must be a call that cannot be inlined.
class FloatMode {
 public:
#if defined(__SSE__)
  FloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kStatusFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatMode() {
    if ((saved_ & ~kStatusFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80;
  static constexpr unsigned kStatusFlags = 0x3f;
  unsigned saved_;
#else
  FloatMode() {}  // the process default is IEEE elsewhere
  ~FloatMode() {}

 public:
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;
};

}  // namespace mtrains
