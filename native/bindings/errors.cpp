#include "errors.h"

#include <nanobind/nanobind.h>

#include <exception>

#include "mtrains/errors.h"

namespace nb = nanobind;

namespace mtrains {
namespace {

template <typename... Args>
void raise(const char* name, Args... args) {
  const nb::object type = nb::module_::import_("mtrains.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(args...).ptr());
}

}  // namespace

void register_errors() {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const IoError& error) {
      raise("TierIOError", error.code, error.what());
    } catch (const CorruptionError& error) {
      raise("FormatError", error.what());
    } catch (const CapacityError& error) {
      raise("CapacityError", error.what());
    } catch (const StateError& error) {
      raise("StateError", error.what());
    }
  });
}

}  // namespace mtrains
