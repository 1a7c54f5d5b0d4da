// C++ errors as Python exceptions of mtrains.errors.
#pragma once

namespace mtrains {
void register_errors();
}
