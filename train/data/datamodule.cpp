// The default bodies of DataModule.
#include "levin/train/datamodule.h"

#include "tensor/text/type_name.h"
#include "train/data/transfer.h"

namespace levin {

DataModule::~DataModule() = default;

Batch DataModule::transfer_batch_to_device(Batch batch, Device device) {
  return train::move_batch(std::move(batch), device);
}
Trainer& DataModule::trainer() const {
  if (!trainer_) fail<StateError>("DataModule: trainer() needs a stage; call it inside a hook");
  return *trainer_;
}
void DataModule::fail_not_named(const std::type_info& named) const {
  fail<ConfigError>("Trainer: a data module (", detail::type_name(typeid(*this)),
                    ") is derived from one that names itself (", detail::type_name(named),
                    "), so that what it overrides would not be seen; write struct D : DataModuleOf<D, Base> with that "
                    "one as Base");
}

}  // namespace levin
