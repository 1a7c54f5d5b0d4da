// A device that Python drives: the core calls these without the GIL.
#include "device.h"

#include <nanobind/stl/shared_ptr.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace mtrains {
namespace {

// A Python object that is let go of with the GIL held, wherever its owner dies.
class Held {
 public:
  explicit Held(nb::object object) : object_(std::move(object)) {}
  ~Held() {
    if (!nb::is_alive()) {  // the interpreter has ended
      object_.release();
      return;
    }
    const nb::gil_scoped_acquire gil;
    object_.reset();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  const nb::object& operator*() const { return object_; }

 private:
  nb::object object_;
};

// A view that is valid during the call.
template <typename T>
nb::object view(T* data, std::size_t size) {
  if (data == nullptr) return nb::none();
  return nb::cast(nb::ndarray<nb::numpy, T>(data, {size}), nb::rv_policy::reference);
}

class PyRecords : public DeviceRecords {
 public:
  PyRecords(nb::object records, std::size_t stride) : records_(std::move(records)), stride_(stride) {}
  void load(const std::uint32_t* slots, std::size_t n, std::byte* out) override {
    const nb::gil_scoped_acquire gil;
    (*records_).attr("load")(view(slots, n), view(reinterpret_cast<std::uint8_t*>(out), n * stride_));
  }
  void store(const std::uint32_t* slots, std::size_t n, const std::byte* records) override {
    const nb::gil_scoped_acquire gil;
    (*records_).attr("store")(view(slots, n),
                              view(reinterpret_cast<const std::uint8_t*>(records), n * stride_));
  }
  void resize(std::uint32_t capacity) override {
    const nb::gil_scoped_acquire gil;
    (*records_).attr("resize")(capacity);
  }
  const nb::object& object() const { return *records_; }

 private:
  Held records_;
  std::size_t stride_;
};

class PyMemory : public DeviceMemory {
 public:
  explicit PyMemory(nb::object memory) : memory_(std::move(memory)) {}
  std::unique_ptr<DeviceRecords> reserve(std::size_t stride, std::uint32_t max_slots) override {
    const nb::gil_scoped_acquire gil;
    return std::make_unique<PyRecords>((*memory_).attr("reserve")(stride, max_slots), stride);
  }

 private:
  Held memory_;
};

nb::object layout_of(const RecordLayout& layout) {
  return nb::make_tuple(static_cast<int>(layout.dtype), layout.dim, layout.state_floats);
}

class PyCompute : public DeviceCompute {
 public:
  explicit PyCompute(nb::object compute) : compute_(std::move(compute)) {}

  void pool(std::size_t feature, DeviceRecords& records, const PoolTask& task,
            std::uint64_t num_positions) override {
    const nb::gil_scoped_acquire gil;
    nb::dict d;
    d["layout"] = layout_of(task.layout);
    d["slot_of_position"] = view(task.slot_of_position, num_positions);
    d["offsets"] = view(task.offsets, task.bag_end + 1);
    d["position_begin"] = task.position_begin, d["position_end"] = task.position_end;
    d["first_piece"] = task.first_piece, d["last_piece"] = task.last_piece;
    d["mode"] = static_cast<int>(task.mode);
    d["counts"] = view(task.counts, task.bag_end);
    (*compute_).attr("pool")(feature, object_of(records), **d);
  }

  void weight_grad(DeviceRecords& records, const WeightGradTask& task, std::uint64_t num_positions) override {
    const nb::gil_scoped_acquire gil;
    nb::dict d;
    d["layout"] = layout_of(task.layout);
    d["slot_of_position"] = view(task.slot_of_position, num_positions);
    d["offsets"] = view(task.offsets, task.bag_end + 1);
    d["position_begin"] = task.position_begin, d["position_end"] = task.position_end;
    (*compute_).attr("weight_grad")(object_of(records), **d);
  }

  void update(std::size_t update, DeviceRecords& records, const UpdateTask& task, const BatchPlan* plan,
              const std::vector<float>* counts) override {
    const nb::gil_scoped_acquire gil;
    const std::uint64_t begin = task.unique_begin, end = task.unique_end;
    nb::dict d;
    d["layout"] = layout_of(task.layout);
    d["slots"] = view(task.slots + begin, end - begin);
    d["rows"] = view(task.rows + begin, end - begin);
    d["begin"] = begin, d["end"] = end;
    d["csr"] = plan == nullptr ? nb::object(nb::none()) : view(plan->csr.data() + begin, end - begin + 1);
    d["positions"] =
        plan == nullptr ? nb::object(nb::none()) : view(plan->positions.data(), plan->positions.size());
    d["bag_of_position"] = plan == nullptr || plan->bag_of_position.empty()
                               ? nb::object(nb::none())
                               : view(plan->bag_of_position.data(), plan->bag_of_position.size());
    d["counts"] = counts == nullptr ? nb::object(nb::none()) : view(counts->data(), counts->size());
    d["scale"] = task.source.scale;
    d["optimizer"] = static_cast<int>(task.optimizer), d["decay"] = static_cast<int>(task.decay);
    d["maximize"] = task.maximize;
    d["lr"] = task.lr, d["eps"] = task.eps, d["weight_decay"] = task.weight_decay;
    d["decay_factor"] = task.decay_factor;
    d["one_minus_beta1"] = task.one_minus_beta1, d["one_minus_beta2"] = task.one_minus_beta2;
    d["rounding_key"] = task.rounding_key, d["update_count"] = task.update_count;
    (*compute_).attr("update")(update, object_of(records), **d);
  }

 private:
  static const nb::object& object_of(DeviceRecords& records) {
    return static_cast<PyRecords&>(records).object();
  }
  Held compute_;
};

}  // namespace

std::vector<TierSpec> tiers_from(const nb::sequence& tiers) {
  std::vector<TierSpec> specs;
  for (const nb::handle item : tiers) {
    const auto fields = nb::cast<nb::tuple>(item);
    TierSpec spec;
    const int kind = nb::cast<int>(fields[0]);
    if (kind < 0 || kind >= static_cast<int>(kSlotTiers))
      throw std::invalid_argument("a tier's kind is 0 (hbm), 1 (dram) or 2 (scm)");
    spec.kind = static_cast<TierKind>(kind);
    spec.bytes = nb::cast<std::uint64_t>(fields[1]);
    spec.set_aside = nb::cast<std::uint64_t>(fields[2]);
    if (!fields[3].is_none()) spec.memory = nb::cast<std::shared_ptr<SlotMemory>>(fields[3]);
    if (!fields[4].is_none()) spec.device = std::make_shared<PyMemory>(nb::borrow(fields[4]));
    if (!fields[5].is_none()) spec.limit = nb::cast<std::shared_ptr<BandwidthLimit>>(fields[5]);
    specs.push_back(std::move(spec));
  }
  return specs;
}

void bind_device(nb::module_& m) {
  using namespace nanobind::literals;
  nb::class_<DeviceCompute>(m, "_DeviceCompute");
  nb::class_<PyCompute, DeviceCompute>(m, "DeviceCompute").def(nb::init<nb::object>(), "compute"_a);
}

}  // namespace mtrains
