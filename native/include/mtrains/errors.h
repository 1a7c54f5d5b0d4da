// Errors of the native core. Bindings turn them into the Python tree of mtrains.errors.
#pragma once

#include <stdexcept>
#include <string>

namespace mtrains {

// A device or file operation failed: TierIOError in Python. `code` is an errno.
class IoError : public std::runtime_error {
 public:
  IoError(int code, const std::string& what) : std::runtime_error(what), code(code) {}
  int code;
};

// Bytes on disk are not what was written (wrong CRC, wrong segment id): FormatError in Python.
class CorruptionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A budget cannot hold what is needed: CapacityError in Python.
class CapacityError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The call is not valid now (closed, read-only after an error, ...): StateError in Python.
class StateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Bad arguments are std::invalid_argument (ValueError) and std::out_of_range (IndexError).

}  // namespace mtrains
