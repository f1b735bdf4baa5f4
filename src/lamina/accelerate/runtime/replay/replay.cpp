// Replays launch plans in C++: in eager mode, Python takes the CPU longer than small kernels take a GPU.
//
// A plan is a straight sequence of allocations, kernel launches and operators, recorded once in Python for one layout of
// the arguments. `Cache::call` finds the plan of a call, runs it and attaches an autograd node; the node runs the plan of
// the backward pass without the GIL. Whatever has no plan is left to Python.

#include <Python.h>

#include <dlfcn.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/tensor_dtypes.h>
#include <torch/library.h>

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <variant>

namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr size_t MAX_ENTRIES = 4096;  // of a cache; a full one starts again
constexpr int RECORD_AT = 2;          // a single call is not worth a recording
constexpr int MAX_PARAMS = 96;

// ---- The CUDA driver, loaded at run time: this file builds without CUDA's headers.

struct Attribute {  // CUlaunchAttribute
  int id, pad, value;
  char rest[60];
};
struct Config {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
};
constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;
using LaunchKernel = int (*)(const Config*, void*, void**, void**);
using ErrorString = int (*)(int, const char**);
using GetContext = int (*)(void**);
using SetContext = int (*)(void*);

LaunchKernel launch_kernel = nullptr;
ErrorString error_string = nullptr;
GetContext get_context = nullptr;
SetContext set_context = nullptr;

void find_driver() {
  if (void* driver = dlopen("libcuda.so.1", RTLD_LAZY)) {
    launch_kernel = reinterpret_cast<LaunchKernel>(dlsym(driver, "cuLaunchKernelEx"));
    error_string = reinterpret_cast<ErrorString>(dlsym(driver, "cuGetErrorString"));
    get_context = reinterpret_cast<GetContext>(dlsym(driver, "cuCtxGetCurrent"));
    set_context = reinterpret_cast<SetContext>(dlsym(driver, "cuCtxSetCurrent"));
  }
}

// The context of this thread; a thread that has not called CUDA's runtime yet has none.
void* current_context() {
  void* context = nullptr;
  if (get_context) get_context(&context);
  return context;
}

// ---- Python objects of this module's settings.

PyTypeObject* parameter_type = nullptr;
PyObject* float32_precision = nullptr;  // () -> str
PyObject* raw_stream = nullptr;         // (device index) -> int
PyObject* slot_type = nullptr;          // marks a tensor of the plan among an operator's arguments

struct Object {  // an owned reference, released with the GIL held
  PyObject* object = nullptr;
  Object() = default;
  explicit Object(PyObject* owned) : object(owned) {}
  Object(const Object&) = delete;
  Object(Object&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(object, other.object);
    return *this;
  }
  ~Object() {
    if (!object || !Py_IsInitialized()) return;
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF(object);
    PyGILState_Release(gil);
  }
  explicit operator bool() const { return object != nullptr; }
};

Object checked(PyObject* owned) {
  if (!owned) throw python_error();
  return Object(owned);
}

Tensor as_tensor(PyObject* object) { return object == Py_None ? Tensor() : THPVariable_Unpack(object); }

PyObject* wrap(const Tensor& tensor) {
  if (!tensor.defined()) Py_RETURN_NONE;
  return THPVariable_Wrap(tensor);
}

// ---- Plans.

struct Param {  // the address of a slot's data plus `value`, or with slot -1 the bytes of `value`
  int slot;
  uint64_t value;
};
struct Launch {
  void* function;
  unsigned grid[3], block[3], shared;
  bool pdl;
  std::vector<Param> params;
};
struct Empty {
  std::vector<int64_t> sizes, strides;
  at::TensorOptions options;
};
struct Operator {  // with the slots of its tensor arguments
  c10::OperatorHandle handle;
  std::vector<at::IValue> args;
  std::vector<std::pair<int, int>> tensors;
  bool has_output;
};
struct Callable {  // of Python: kernels in Triton's interpreter
  Object function, args;
  std::vector<std::pair<int, int>> tensors;
};

struct Plan {
  void* context = current_context();  // of the thread that recorded
  std::vector<std::variant<Launch, Empty, Operator, Callable>> steps;
  std::vector<int> results;  // slots; -1 stands for None
  std::vector<Tensor> keep;  // whose addresses are constants

  // Slots are the inputs, then the outputs of the steps in order.
  std::vector<Tensor> run(c10::ArrayRef<Tensor> inputs, void* stream) const {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    if (context && !current_context()) set_context(context);
    c10::SmallVector<Tensor, 32> slots(inputs.begin(), inputs.end());
    for (const auto& step : steps) {
      if (auto* launch = std::get_if<Launch>(&step)) {
        queue(*launch, slots, stream);
      } else if (auto* empty = std::get_if<Empty>(&step)) {
        slots.push_back(at::empty_strided(empty->sizes, empty->strides, empty->options));
      } else if (auto* op = std::get_if<Operator>(&step)) {
        torch::jit::Stack stack(op->args);
        for (auto [position, slot] : op->tensors) stack[position] = slots[slot];
        op->handle.callBoxed(stack);
        if (op->has_output) slots.push_back(stack[0].toTensor());
      } else {
        call(std::get<Callable>(step), slots);
      }
    }
    std::vector<Tensor> out;
    for (int slot : results) out.push_back(slot < 0 ? Tensor() : slots[slot]);
    return out;
  }

 private:
  static void queue(const Launch& launch, c10::ArrayRef<Tensor> slots, void* stream) {
    uint64_t values[MAX_PARAMS];
    void* addresses[MAX_PARAMS];
    for (size_t i = 0; i < launch.params.size(); ++i) {
      auto [slot, value] = launch.params[i];
      values[i] = slot < 0 ? value : reinterpret_cast<uint64_t>(slots[slot].const_data_ptr()) + value;
      addresses[i] = &values[i];
    }
    Attribute pdl{PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1, {}};
    Config config{{launch.grid[0], launch.grid[1], launch.grid[2]},
                  {launch.block[0], launch.block[1], launch.block[2]},
                  launch.shared, stream, &pdl, launch.pdl};
    if (int code = launch_kernel(&config, launch.function, addresses, nullptr)) {
      const char* text = nullptr;
      if (error_string) error_string(code, &text);
      throw std::runtime_error(std::string("CUDA error: ") + (text ? text : std::to_string(code).c_str()));
    }
  }

  static void call(const Callable& callable, c10::ArrayRef<Tensor> slots) {
    pybind11::gil_scoped_acquire gil;
    Py_ssize_t count = PyTuple_GET_SIZE(callable.args.object);
    Object args = checked(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = PyTuple_GET_ITEM(callable.args.object, i);
      Py_INCREF(item);
      PyTuple_SET_ITEM(args.object, i, item);
    }
    for (auto [position, slot] : callable.tensors) PyTuple_SetItem(args.object, position, wrap(slots[slot]));
    checked(PyObject_CallObject(callable.function.object, args.object));
  }
};

// ---- Keys: everything that a plan follows from.

using Words = c10::SmallVector<int64_t, 128>;

struct Hash {
  size_t operator()(const Words& words) const {
    uint64_t hash = 1469598103934665603ull;
    for (int64_t word : words) hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
    return hash;
  }
};

// Appends a tensor's layout; false if it is not a plain strided tensor.
bool append(Words& words, const Tensor& tensor) {
  if (!tensor.defined()) {
    words.push_back(-1);
    return true;
  }
  auto* impl = tensor.unsafeGetTensorImpl();
  static const c10::DispatchKeySet unusual{
      c10::DispatchKey::Python,    c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::ZeroTensor, c10::DispatchKey::Conjugate,        c10::DispatchKey::Negative,
      c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchGradWrapper};
  if (tensor.layout() != at::kStrided || !impl->has_storage() || impl->key_set().has_any(unusual)) return false;
  if (torch::autograd::isFwGradDefined(tensor)) return false;
  words.push_back(static_cast<int64_t>(tensor.scalar_type()) << 32 | tensor.dim() << 16 |
                  static_cast<int64_t>(tensor.device().type()) << 8 | static_cast<uint8_t>(tensor.device().index()));
  words.append(tensor.sizes().begin(), tensor.sizes().end());
  words.append(tensor.strides().begin(), tensor.strides().end());
  words.push_back(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 << 1 | tensor.requires_grad());
  return true;
}

// Whether a mode, a transform or tracing observes operators in this thread.
bool observed() {
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return true;
  auto keys = c10::impl::tls_local_dispatch_key_set();
  return !(keys.included_ - c10::default_included_set - c10::autocast_dispatch_keyset).empty();
}

bool is_current(c10::Device device) {
  if (device.type() != c10::DeviceType::CUDA) return true;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice().index() == device.index();
}

// Meta tensors have neither kernels nor autocast.
bool has_streams(c10::Device device) {
  return device.type() == c10::DeviceType::CUDA || device.type() == c10::DeviceType::CPU;
}

void* current_stream(c10::Device device) {
  if (device.type() != c10::DeviceType::CUDA) return nullptr;
  Object index = checked(PyLong_FromLong(device.index()));
  Object stream = checked(PyObject_CallOneArg(raw_stream, index.object));
  return PyLong_AsVoidPtr(stream.object);
}

// ---- Entries: a forward plan, what autograd needs, and the plans of backward passes.

struct Entry {
  std::string name;
  Plan forward;
  std::vector<int> tensor_args;              // positions of the tensors among the arguments
  std::vector<std::pair<bool, int>> saved;   // (is an output, index)
  std::vector<bool> differentiable;          // for each output
  Object backward;                           // Python's: (gradients, saved, needs, record) -> (gradients, plan)
  std::mutex mutex;
  std::unordered_map<Words, std::shared_ptr<Plan>, Hash> plans;
  std::unordered_set<Words, Hash> seen;
};

// Nodes are counted by std::shared_ptr or c10::intrusive_ptr, depending on PyTorch's version.
using NodePtr = decltype(torch::autograd::Edge::function);

template <class T, class Ptr>
struct Counted {
  static Ptr make() { return Ptr(c10::make_intrusive<T>()); }
  static Ptr self(T* node) { return Ptr::unsafe_reclaim_from_nonowning(node); }
};
template <class T, class N>
struct Counted<T, std::shared_ptr<N>> {
  static std::shared_ptr<N> make() {
    return std::shared_ptr<N>(new T(), [](N* node) { deleteNode(node); });  // found by the argument's namespace
  }
  static std::shared_ptr<N> self(T* node) { return node->shared_from_this(); }
};

struct ReplayBackward : torch::autograd::Node {
  std::shared_ptr<Entry> entry;
  std::vector<SavedVariable> saved;
  void* stream = nullptr;  // of the forward pass: the engine runs the backward pass on it
  bool released = false;
  std::mutex mutex;

  std::string name() const override { return entry->name; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& each : saved) each.reset_data();
    released = true;
  }

  variable_list apply(variable_list&& gradients) override {
    variable_list tensors;
    {
      std::lock_guard<std::mutex> lock(mutex);
      TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
      for (auto& each : saved) tensors.push_back(each.unpack(Counted<ReplayBackward, NodePtr>::self(this)));
    }
    Words key;
    int64_t needs = 0;
    for (size_t i = 0; i < num_outputs(); ++i) needs |= static_cast<int64_t>(task_should_compute_output(i)) << i;
    key.push_back(needs);
    bool plain = !at::GradMode::is_enabled() && !observed();
    std::vector<Tensor> inputs;
    for (const auto& each : gradients) {
      plain = plain && append(key, each) && (!each.defined() || is_current(each.device()));
      if (each.defined()) inputs.push_back(each);
    }
    for (const auto& each : tensors) {
      plain = plain && append(key, each);
      if (each.defined()) inputs.push_back(each);
    }
    bool record = false;
    if (plain) {
      std::shared_ptr<Plan> plan;
      {
        std::lock_guard<std::mutex> lock(entry->mutex);
        auto found = entry->plans.find(key);
        if (found != entry->plans.end()) plan = found->second;
        else if (entry->seen.size() < MAX_ENTRIES) record = entry->seen.insert(key).second;
      }
      if (plan) return plan->run(inputs, stream);
    }
    return by_python(gradients, tensors, needs, record ? &key : nullptr);
  }

 private:
  static PyObject* list(const variable_list& tensors) {
    Object out = checked(PyList_New(tensors.size()));
    for (size_t i = 0; i < tensors.size(); ++i) PyList_SET_ITEM(out.object, i, wrap(tensors[i]));
    return std::exchange(out.object, nullptr);
  }

  variable_list by_python(const variable_list& gradients, const variable_list& tensors, int64_t needs, Words* key) {
    pybind11::gil_scoped_acquire gil;
    auto failed = [] {
      python_error error;
      error.persist();
      return error;
    };
    Object first(list(gradients)), second(list(tensors));
    Object result(PyObject_CallFunction(entry->backward.object, "OOLO", first.object, second.object,
                                        static_cast<long long>(needs), key ? Py_True : Py_False));
    if (!result) throw failed();
    PyObject *computed, *plan;
    if (!PyArg_ParseTuple(result.object, "OO", &computed, &plan)) throw failed();
    variable_list out;
    for (int position : entry->tensor_args) out.push_back(as_tensor(PyTuple_GET_ITEM(computed, position)));
    if (key && plan != Py_None) {
      auto* recorded = static_cast<std::shared_ptr<Plan>*>(PyCapsule_GetPointer(plan, "plan"));
      if (!recorded) throw failed();
      std::lock_guard<std::mutex> lock(entry->mutex);
      entry->plans[*key] = *recorded;
    }
    return out;
  }
};

// The outputs of an entry, with a node of autograd if one of its tensors needs gradients.
std::vector<Tensor> run(const std::shared_ptr<Entry>& entry, c10::ArrayRef<Tensor> tensors, bool needs_grad) {
  void* stream = current_stream(tensors[0].device());
  auto out = entry->forward.run(tensors, stream);
  if (!needs_grad) return out;
  NodePtr pointer = Counted<ReplayBackward, NodePtr>::make();
  auto* node = static_cast<ReplayBackward*>(pointer.get());
  node->entry = entry;
  node->stream = stream;
  torch::autograd::edge_list edges;
  for (const auto& each : tensors) {
    edges.push_back(each.requires_grad() ? torch::autograd::impl::gradient_edge(each) : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  for (size_t i = 0; i < out.size(); ++i) {
    if (entry->differentiable[i]) torch::autograd::set_history(out[i], pointer);
    else node->add_input_metadata(torch::autograd::Node::undefined_input());
  }
  for (auto [is_output, index] : entry->saved) {
    if (index < 0) node->saved.emplace_back();
    else node->saved.emplace_back(is_output ? out[index] : tensors[index], is_output);
  }
  return out;
}

void delete_entry(PyObject* capsule) {
  delete static_cast<std::shared_ptr<Entry>*>(PyCapsule_GetPointer(capsule, "entry"));
}

// ---- The cache of one operator, or of one function that is a single call of it.

struct Found {
  std::shared_ptr<Entry> entry;  // none: Python computes it
  std::vector<int> order;        // the entry's tensors among those of this call
  bool first;                    // only the first output is returned
};

struct Cache {
  PyObject_HEAD
  std::unordered_map<Words, Found, Hash>* found;
  std::unordered_map<Words, int, Hash>* calls;
  PyObject* constants;  // to their numbers
};

struct Call {
  Words key;
  c10::SmallVector<Tensor, 8> tensors;
  c10::SmallVector<int, 8> positions;
  bool needs_grad = false;
};

// What a call follows from; false if only Python can compute it.
bool parse(Cache* cache, PyObject* args, Call& call) {
  Object constants = checked(PyList_New(0));
  bool grad = at::GradMode::is_enabled();
  auto add_constant = [&](PyObject* item) {
    if (PyList_CheckExact(item)) {
      Object tuple = checked(PyList_AsTuple(item));
      return PyList_Append(constants.object, tuple.object);
    }
    return PyList_Append(constants.object, item);
  };
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* item = PyTuple_GET_ITEM(args, i);
    if (THPVariable_CheckTypeExact(Py_TYPE(item)) || Py_TYPE(item) == parameter_type) {
      const Tensor& tensor = THPVariable_Unpack(item);
      if (!append(call.key, tensor)) return false;
      call.tensors.push_back(tensor);
      call.positions.push_back(static_cast<int>(i));
      call.needs_grad |= grad && tensor.requires_grad();
    } else if (THPVariable_Check(item)) {
      return false;
    } else {
      call.key.push_back(-2 - i);
      if (add_constant(item)) throw python_error();
    }
  }
  if (call.tensors.empty() || !has_streams(call.tensors[0].device()) || !is_current(call.tensors[0].device()) || observed()) return false;
  auto device = call.tensors[0].device().type();
  bool autocast = at::autocast::is_autocast_enabled(device);
  call.key.push_back(call.needs_grad << 1 | grad << 2 | c10::InferenceMode::is_enabled() << 3);
  call.key.push_back(autocast ? static_cast<int64_t>(at::autocast::get_autocast_dtype(device)) : -1);
  Object precision = checked(PyObject_CallNoArgs(float32_precision));
  if (PyList_Append(constants.object, precision.object)) throw python_error();
  Object tuple = checked(PyList_AsTuple(constants.object));
  PyObject* number = PyDict_GetItemWithError(cache->constants, tuple.object);
  if (!number) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_TypeError)) {  // not hashable
      PyErr_Clear();
      return false;
    }
    if (PyErr_Occurred()) throw python_error();
    Object next = checked(PyLong_FromSsize_t(PyDict_GET_SIZE(cache->constants)));
    if (PyDict_SetItem(cache->constants, tuple.object, next.object)) throw python_error();
    number = PyDict_GetItem(cache->constants, tuple.object);
  }
  call.key.push_back(PyLong_AsLongLong(number));
  return true;
}

PyObject* results(const std::vector<Tensor>& out, bool single) {
  if (single) return wrap(out[0]);
  Object tuple = checked(PyTuple_New(out.size()));
  for (size_t i = 0; i < out.size(); ++i) PyTuple_SET_ITEM(tuple.object, i, wrap(out[i]));
  return std::exchange(tuple.object, nullptr);
}

// call(args) -> outputs; False: to be computed by Python; True: to be recorded.
PyObject* cache_call(Cache* self, PyObject* args) {
  HANDLE_TH_ERRORS
  Call call;
  if (!parse(self, args, call)) Py_RETURN_FALSE;
  auto found = self->found->find(call.key);
  if (found == self->found->end()) {
    if (self->calls->size() >= MAX_ENTRIES) self->calls->clear();
    return PyBool_FromLong(++(*self->calls)[call.key] == RECORD_AT);
  }
  if (!found->second.entry) Py_RETURN_FALSE;
  Found target = found->second;  // a copy: Python code of a step may clear the cache
  c10::SmallVector<Tensor, 8> tensors;
  for (int index : target.order) tensors.push_back(call.tensors[index]);
  return results(run(target.entry, tensors, call.needs_grad), target.first);
  END_HANDLE_TH_ERRORS
}

// put(args, entry or None, order, first): the entry that computes calls like this one.
PyObject* cache_put(Cache* self, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *like, *capsule, *order;
  int first;
  if (!PyArg_ParseTuple(args, "O!OO!p", &PyTuple_Type, &like, &capsule, &PyTuple_Type, &order, &first)) return nullptr;
  Call call;
  if (!parse(self, like, call)) Py_RETURN_FALSE;
  Found found{nullptr, {}, first != 0};
  if (capsule != Py_None) {
    auto* entry = static_cast<std::shared_ptr<Entry>*>(PyCapsule_GetPointer(capsule, "entry"));
    if (!entry) return nullptr;
    found.entry = *entry;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(order); ++i) {
    found.order.push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(order, i))));
  }
  if (self->found->size() >= MAX_ENTRIES) self->found->clear();
  (*self->found)[call.key] = std::move(found);
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// get(args): the entry that computes calls like this one, or None.
PyObject* cache_get(Cache* self, PyObject* args) {
  HANDLE_TH_ERRORS
  Call call;
  if (!parse(self, args, call)) Py_RETURN_NONE;
  auto found = self->found->find(call.key);
  if (found == self->found->end() || !found->second.entry) Py_RETURN_NONE;
  return PyCapsule_New(new std::shared_ptr<Entry>(found->second.entry), "entry", delete_entry);
  END_HANDLE_TH_ERRORS
}

PyObject* cache_clear(Cache* self, PyObject*) {
  self->found->clear();
  self->calls->clear();
  PyDict_Clear(self->constants);
  Py_RETURN_NONE;
}

PyObject* cache_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<Cache*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->found = new std::unordered_map<Words, Found, Hash>();
  self->calls = new std::unordered_map<Words, int, Hash>();
  self->constants = PyDict_New();
  return reinterpret_cast<PyObject*>(self);
}

void cache_dealloc(Cache* self) {
  delete self->found;
  delete self->calls;
  Py_XDECREF(self->constants);
  Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

PyMethodDef cache_methods[] = {
    {"call", reinterpret_cast<PyCFunction>(cache_call), METH_O, nullptr},
    {"put", reinterpret_cast<PyCFunction>(cache_put), METH_VARARGS, nullptr},
    {"get", reinterpret_cast<PyCFunction>(cache_get), METH_O, nullptr},
    {"clear", reinterpret_cast<PyCFunction>(cache_clear), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject cache_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// ---- Plans and entries from Python.

std::vector<int64_t> integers(PyObject* sequence) {
  std::vector<int64_t> out;
  Object items = checked(PySequence_Fast(sequence, "expected integers"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.object); ++i) {
    out.push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items.object, i)));
  }
  if (PyErr_Occurred()) throw python_error();
  return out;
}

// A number in place of a tensor does not decide the dtype of the result.
Tensor wrapped_number(PyObject* object) {
  at::Scalar number = PyBool_Check(object)    ? at::Scalar(object == Py_True)
                      : PyLong_Check(object) ? at::Scalar(static_cast<int64_t>(PyLong_AsLongLong(object)))
                                              : at::Scalar(PyFloat_AsDouble(object));
  if (PyErr_Occurred()) throw python_error();
  Tensor out = at::scalar_to_tensor(number);
  out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

at::IValue value(PyObject* object, const c10::TypePtr& type) {
  auto kind = type->kind() == c10::TypeKind::OptionalType ? type->expectRef<c10::OptionalType>().getElementType()->kind()
                                                          : type->kind();
  if (object == Py_None) return {};
  if (THPVariable_Check(object)) return THPVariable_Unpack(object);
  if (THPDtype_Check(object)) return static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
  if (THPDevice_Check(object)) return reinterpret_cast<THPDevice*>(object)->device;
  if (THPLayout_Check(object)) return static_cast<int64_t>(reinterpret_cast<THPLayout*>(object)->layout);
  if (THPMemoryFormat_Check(object)) {
    return static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(object)->memory_format);
  }
  if (kind == c10::TypeKind::TensorType) return wrapped_number(object);
  if (PyBool_Check(object)) return object == Py_True;
  if (PyFloat_Check(object)) return PyFloat_AS_DOUBLE(object);
  if (PyLong_Check(object)) {
    if (kind == c10::TypeKind::ListType) return c10::List<int64_t>({PyLong_AsLongLong(object)});
    if (kind == c10::TypeKind::FloatType) return PyLong_AsDouble(object);
    return static_cast<int64_t>(PyLong_AsLongLong(object));
  }
  if (PyUnicode_Check(object)) return std::string(PyUnicode_AsUTF8(object));
  if (PyList_Check(object) || PyTuple_Check(object)) {
    auto items = integers(object);
    if (type->str().find("bool") != std::string::npos) {
      c10::List<bool> flags;
      for (int64_t item : items) flags.push_back(item != 0);
      return flags;
    }
    return c10::List<int64_t>(c10::ArrayRef<int64_t>(items));
  }
  throw std::runtime_error(std::string("no argument of a plan: ") + Py_TYPE(object)->tp_name);
}

std::vector<std::pair<int, int>> slots_in(PyObject* args) {
  std::vector<std::pair<int, int>> out;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* item = PyTuple_GET_ITEM(args, i);
    if (reinterpret_cast<PyObject*>(Py_TYPE(item)) == slot_type) {
      out.emplace_back(static_cast<int>(i), static_cast<int>(PyLong_AsLong(item)));
    }
  }
  return out;
}

Launch launch_from(PyObject* step) {
  PyObject *function, *grid, *block, *params;
  unsigned shared;
  int pdl;
  Launch launch;
  if (!PyArg_ParseTuple(step, "OOOIpO", &function, &grid, &block, &shared, &pdl, &params)) throw python_error();
  launch.function = PyLong_AsVoidPtr(function);
  auto blocks = integers(grid), threads = integers(block);
  for (int i = 0; i < 3; ++i) launch.grid[i] = blocks.at(i), launch.block[i] = threads.at(i);
  launch.shared = shared, launch.pdl = pdl;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(params); ++i) {
    PyObject* pair = PyList_GET_ITEM(params, i);
    int slot = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(pair, 0)));
    launch.params.push_back({slot, PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(pair, 1))});
  }
  if (PyErr_Occurred()) throw python_error();
  if (launch.params.size() > MAX_PARAMS) throw std::runtime_error("too many parameters for a plan");
  if (!launch_kernel) throw std::runtime_error("expected the CUDA driver (libcuda.so.1), found none");
  return launch;
}

Empty empty_from(PyObject* step) {
  PyObject *sizes, *strides, *dtype, *device;
  if (!PyArg_ParseTuple(step, "OOOO", &sizes, &strides, &dtype, &device)) throw python_error();
  auto options = at::TensorOptions(reinterpret_cast<THPDevice*>(device)->device)
                     .dtype(reinterpret_cast<THPDtype*>(dtype)->scalar_type);
  return {integers(sizes), integers(strides), options};
}

Operator operator_from(PyObject* step) {
  const char *name, *overload;
  PyObject* args;
  int has_output;
  if (!PyArg_ParseTuple(step, "ssOp", &name, &overload, &args, &has_output)) throw python_error();
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  Operator op{handle, {}, slots_in(args), has_output != 0};
  const auto& arguments = handle.schema().arguments();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* item = PyTuple_GET_ITEM(args, i);
    bool slot = reinterpret_cast<PyObject*>(Py_TYPE(item)) == slot_type;
    op.args.push_back(slot ? at::IValue() : value(item, arguments[i].type()));
  }
  return op;
}

void delete_plan(PyObject* capsule) {
  delete static_cast<std::shared_ptr<Plan>*>(PyCapsule_GetPointer(capsule, "plan"));
}

// plan(steps, results, keep): a step is ("launch" | "empty" | "operator" | "callable", its fields).
PyObject* make_plan(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *steps, *outputs, *keep;
  if (!PyArg_ParseTuple(args, "O!OO!", &PyList_Type, &steps, &outputs, &PyList_Type, &keep)) return nullptr;
  auto plan = std::make_shared<Plan>();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(steps); ++i) {
    const char* type;
    PyObject* step;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(steps, i), "sO!", &type, &PyTuple_Type, &step)) return nullptr;
    if (!strcmp(type, "launch")) plan->steps.emplace_back(launch_from(step));
    else if (!strcmp(type, "empty")) plan->steps.emplace_back(empty_from(step));
    else if (!strcmp(type, "operator")) plan->steps.emplace_back(operator_from(step));
    else {
      PyObject* function = PyTuple_GET_ITEM(step, 0);
      PyObject* arguments = PyTuple_GET_ITEM(step, 1);
      plan->steps.emplace_back(Callable{Object(Py_NewRef(function)), Object(Py_NewRef(arguments)), slots_in(arguments)});
    }
  }
  for (int64_t slot : integers(outputs)) plan->results.push_back(static_cast<int>(slot));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keep); ++i) {
    plan->keep.push_back(THPVariable_Unpack(PyList_GET_ITEM(keep, i)));
  }
  return PyCapsule_New(new std::shared_ptr<Plan>(std::move(plan)), "plan", delete_plan);
  END_HANDLE_TH_ERRORS
}

// entry(name, plan, tensor_args, saved, differentiable, backward)
PyObject* make_entry(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char* name;
  PyObject *plan, *tensor_args, *saved, *differentiable, *backward;
  if (!PyArg_ParseTuple(args, "sOOO!OO", &name, &plan, &tensor_args, &PyList_Type, &saved, &differentiable,
                        &backward)) {
    return nullptr;
  }
  auto* forward = static_cast<std::shared_ptr<Plan>*>(PyCapsule_GetPointer(plan, "plan"));
  if (!forward) return nullptr;
  auto entry = std::make_shared<Entry>();
  entry->name = name;
  entry->forward = std::move(**forward);
  for (int64_t position : integers(tensor_args)) entry->tensor_args.push_back(static_cast<int>(position));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(saved); ++i) {
    auto pair = integers(PyList_GET_ITEM(saved, i));
    entry->saved.emplace_back(pair.at(0) != 0, static_cast<int>(pair.at(1)));
  }
  for (int64_t flag : integers(differentiable)) entry->differentiable.push_back(flag != 0);
  entry->backward = Object(Py_NewRef(backward));
  return PyCapsule_New(new std::shared_ptr<Entry>(std::move(entry)), "entry", delete_entry);
  END_HANDLE_TH_ERRORS
}

// ---- Operators where the dispatcher calls them, as in compiled graphs: no Python on the way to a plan.

PyObject* python_argument(const at::IValue& value, const c10::Argument& argument) {
  if (value.isNone()) Py_RETURN_NONE;
  if (value.isTensor()) return wrap(value.toTensor());
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  if (value.isInt()) {
    auto type = argument.real_type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() != c10::TypeKind::ScalarTypeType) return PyLong_FromLongLong(value.toInt());
    return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt()))));
  }
  if (value.isString()) return PyUnicode_FromString(value.toStringRef().c_str());
  if (value.isIntList()) {
    auto items = value.toIntVector();
    Object tuple = checked(PyTuple_New(items.size()));
    for (size_t i = 0; i < items.size(); ++i) PyTuple_SET_ITEM(tuple.object, i, PyLong_FromLongLong(items[i]));
    return std::exchange(tuple.object, nullptr);
  }
  throw std::runtime_error("expected tensors, numbers, flags, text and lists of integers, got " + value.tagKind());
}

struct Kernel : c10::OperatorKernel {
  Object python;  // (arguments, record) -> (outputs, plan)
  std::unordered_map<Words, std::shared_ptr<Plan>, Hash> plans;
  std::unordered_map<Words, int, Hash> calls;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    pybind11::gil_scoped_acquire gil;  // guards the tables too
    size_t count = op.schema().arguments().size();
    auto args = torch::jit::last(*stack, count);
    Words key;
    c10::SmallVector<Tensor, 8> tensors;
    bool plain = append_all(args, key, tensors) && !observed();
    if (plain) {
      auto found = plans.find(key);
      if (found != plans.end()) {
        auto plan = found->second;
        auto out = plan->run(tensors, current_stream(tensors[0].device()));
        torch::jit::drop(*stack, count);
        for (auto& each : out) stack->emplace_back(std::move(each));
        return;
      }
      if (calls.size() >= MAX_ENTRIES) plans.clear(), calls.clear();
    }
    by_python(op, stack, count, plain && ++calls[key] == RECORD_AT ? &key : nullptr);
  }

 private:
  static bool append_all(c10::ArrayRef<at::IValue> args, Words& key, c10::SmallVector<Tensor, 8>& tensors) {
    for (const auto& each : args) {
      if (each.isTensor()) {
        if (!append(key, each.toTensor())) return false;
        if (each.toTensor().defined()) tensors.push_back(each.toTensor());
      } else if (each.isInt()) {
        key.push_back(each.toInt());
      } else if (each.isBool()) {
        key.push_back(each.toBool());
      } else if (each.isDouble()) {
        double number = each.toDouble();
        int64_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        key.push_back(bits);
      } else if (each.isIntList()) {
        auto items = each.toIntVector();
        key.push_back(items.size());
        key.append(items.begin(), items.end());
      } else if (each.isString()) {
        key.push_back(std::hash<std::string>()(each.toStringRef()));
      } else if (each.isNone()) {
        key.push_back(-1);
      } else {
        return false;
      }
    }
    if (tensors.empty() || !is_current(tensors[0].device())) return false;
    Object precision = checked(PyObject_CallNoArgs(float32_precision));
    key.push_back(PyObject_Hash(precision.object));
    key.push_back(c10::InferenceMode::is_enabled());
    return true;
  }

  void by_python(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t count, const Words* key) {
    const auto& arguments = op.schema().arguments();
    auto args = torch::jit::last(*stack, count);
    Object tuple = checked(PyTuple_New(count));
    for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.object, i, python_argument(args[i], arguments[i]));
    Object result = checked(PyObject_CallFunction(python.object, "OO", tuple.object, key ? Py_True : Py_False));
    PyObject *outputs, *plan;
    if (!PyArg_ParseTuple(result.object, "O!O", &PyTuple_Type, &outputs, &plan)) throw python_error();
    if (key && plan != Py_None) {
      auto* recorded = static_cast<std::shared_ptr<Plan>*>(PyCapsule_GetPointer(plan, "plan"));
      if (!recorded) throw python_error();
      plans[*key] = *recorded;
    }
    torch::jit::drop(*stack, count);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
      stack->emplace_back(as_tensor(PyTuple_GET_ITEM(outputs, i)));
    }
  }
};

// Autograd's kernel of a custom operator is Python. Where nothing needs gradients, it is skipped.
struct SkipAutograd : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    auto below = keys & c10::after_autograd_keyset;
    bool needed = false;
    if (at::GradMode::is_enabled()) {
      for (const auto& each : torch::jit::last(*stack, op.schema().arguments().size())) {
        needed |= each.isTensor() && each.toTensor().defined() && each.toTensor().requires_grad();
      }
    }
    // The operator's own kernel serves every autograd key; "other" is one that this kernel does not override.
    op.redispatchBoxed(needed ? below.add(c10::DispatchKey::AutogradOther) : below, stack);
  }
};

std::vector<Kernel*> kernels;

// register(namespace, operator, device key, autograd key, python)
PyObject* register_kernel(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char *space, *name, *device, *autograd;
  PyObject* python;
  if (!PyArg_ParseTuple(args, "ssssO", &space, &name, &device, &autograd, &python)) return nullptr;
  auto add = [&](const char* key, auto functor) {
    auto* library = new torch::Library(torch::Library::IMPL, space, c10::parseDispatchKey(key), __FILE__, __LINE__);
    library->impl(name, torch::CppFunction::makeFromBoxedFunctor(std::move(functor)));  // for the process's life
  };
  auto kernel = std::make_unique<Kernel>();
  kernel->python = Object(Py_NewRef(python));
  kernels.push_back(kernel.get());
  add(device, std::move(kernel));
  add(autograd, std::make_unique<SkipAutograd>());
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// clear(): forgets the plans of registered operators.
PyObject* clear_kernels(PyObject*, PyObject*) {
  for (auto* kernel : kernels) kernel->plans.clear(), kernel->calls.clear();
  Py_RETURN_NONE;
}

// setup(parameter type, slot type, float32 precision, raw stream)
PyObject* setup(PyObject*, PyObject* args) {
  PyObject* parameter;
  if (!PyArg_ParseTuple(args, "OOOO", &parameter, &slot_type, &float32_precision, &raw_stream)) return nullptr;
  parameter_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter));
  Py_INCREF(slot_type), Py_INCREF(float32_precision), Py_INCREF(raw_stream);
  Py_RETURN_NONE;
}

// use_driver(addresses of cuLaunchKernelEx, cuCtxGetCurrent and cuCtxSetCurrent): for tests without a GPU.
PyObject* use_driver(PyObject*, PyObject* args) {
  PyObject *launch, *get, *set;
  if (!PyArg_ParseTuple(args, "OOO", &launch, &get, &set)) return nullptr;
  launch_kernel = reinterpret_cast<LaunchKernel>(PyLong_AsVoidPtr(launch));
  get_context = reinterpret_cast<GetContext>(PyLong_AsVoidPtr(get));
  set_context = reinterpret_cast<SetContext>(PyLong_AsVoidPtr(set));
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"plan", make_plan, METH_VARARGS, nullptr},
                           {"entry", make_entry, METH_VARARGS, nullptr},
                           {"setup", setup, METH_VARARGS, nullptr},
                           {"register", register_kernel, METH_VARARGS, nullptr},
                           {"clear", clear_kernels, METH_NOARGS, nullptr},
                           {"use_driver", use_driver, METH_VARARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "lamina_replay", nullptr, -1, functions};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_lamina_replay() {
  cache_type.tp_name = "lamina_replay.Cache";
  cache_type.tp_basicsize = sizeof(Cache);
  cache_type.tp_flags = Py_TPFLAGS_DEFAULT;
  cache_type.tp_methods = cache_methods;
  cache_type.tp_new = cache_new;
  cache_type.tp_dealloc = reinterpret_cast<destructor>(cache_dealloc);
  if (PyType_Ready(&cache_type) < 0) return nullptr;
  PyObject* out = PyModule_Create(&module);
  if (!out) return nullptr;
  find_driver();
  Py_INCREF(&cache_type);
  PyModule_AddObject(out, "Cache", reinterpret_cast<PyObject*>(&cache_type));
  return out;
}
