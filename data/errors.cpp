#include "data/errors.h"

#include <exception>
#include <new>

#include "levin/error.h"
#include "tensor/device/launching.h"

namespace levin::data {

void rethrow_with(const std::string& note) {
// Keeps the module's path: that of the thread that rethrows is another one.
#define LEVIN_RETHROW(Type)                                                                 \
  catch (const Type& e) {                                                                   \
    const levin::detail::InModule in(levin::detail::path_id(std::string(e.module_path()))); \
    throw Type(std::string(e.message()) + note, e.where());                                 \
  }
  try {
    throw;
  }
  LEVIN_RETHROW(ShapeError)
  LEVIN_RETHROW(DTypeError)
  LEVIN_RETHROW(DeviceError)
  LEVIN_RETHROW(IndexError)
  LEVIN_RETHROW(AutogradError)
  LEVIN_RETHROW(CaptureError)
  LEVIN_RETHROW(UnsupportedError)
  LEVIN_RETHROW(OutOfMemoryError)
  LEVIN_RETHROW(CudaError)
  LEVIN_RETHROW(CommError)
  LEVIN_RETHROW(FormatError)
  LEVIN_RETHROW(FileError)
  LEVIN_RETHROW(ConfigError)
  LEVIN_RETHROW(StateError)
  LEVIN_RETHROW(DataError)
  LEVIN_RETHROW(InterruptedError)
  LEVIN_RETHROW(InternalError)
  catch (const std::bad_alloc& e) {
    fail<OutOfMemoryError>("loader: ", std::string(e.what()), note);
  }
  catch (const std::exception& e) {
    fail<DataError>("loader: ", std::string(e.what()), note);
  }
  catch (...) {
    fail<DataError>("loader: an exception that is no std::exception", note);
  }
#undef LEVIN_RETHROW
}

}  // namespace levin::data
