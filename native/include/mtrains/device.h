// What an accelerator does for the store: keeps records of slots, and computes over them.
//
// The core decides (plans, slots, moves) and the device moves bytes and computes; a store's device is given
// by its creator, so that the core knows no framework. All calls are made within a pass, by one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "mtrains/batch_plan.h"
#include "mtrains/kernels.h"

namespace mtrains {

// The records of one pool, in the memory of the device.
class DeviceRecords {
 public:
  virtual ~DeviceRecords() = default;
  // Copies records of slots to `out`, one after another, and back. `slots` are distinct.
  virtual void load(const std::uint32_t* slots, std::size_t n, std::byte* out) = 0;
  virtual void store(const std::uint32_t* slots, std::size_t n, const std::byte* records) = 0;
  // Makes slots [0, capacity) usable; what they hold stays.
  virtual void resize(std::uint32_t capacity) = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::unique_ptr<DeviceRecords> reserve(std::size_t stride, std::uint32_t max_slots) = 0;
};

// The kernels of kernels.h over records of a device. Of the tasks, pointers to outputs, gradients and weights
// are the caller's own and mean nothing here: the implementation belongs to one call and knows its tensors.
class DeviceCompute {
 public:
  virtual ~DeviceCompute() = default;
  // feature: of the forward. num_positions: entries of task.slot_of_position.
  virtual void pool(std::size_t feature, DeviceRecords& records, const PoolTask& task,
                    std::uint64_t num_positions) = 0;
  virtual void weight_grad(DeviceRecords& records, const WeightGradTask& task,
                           std::uint64_t num_positions) = 0;
  // update: of the step. plan, counts: of the lookup that the gradient comes from; null where it comes as
  // sums by row. The gradient of a mean is still to be divided by counts.
  virtual void update(std::size_t update, DeviceRecords& records, const UpdateTask& task,
                      const BatchPlan* plan, const std::vector<float>* counts) = 0;
};

}  // namespace mtrains
