// Memory that a kernel needs while it runs, released when its scope ends.
// Not std::vector or std::unique_ptr: kernel_table.hpp says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace twostroke {
namespace {

// `count` numbers, not initialized, from the beginning of a cache line on. None: data() is null.
template <typename Number>
class Buffer {
  public:
    explicit Buffer(int64_t count) : data_(count > 0 ? allocate(count) : nullptr) {}
    ~Buffer() { ::operator delete[](data_, kAlignment); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    Number* data() const { return data_; }
    explicit operator bool() const { return data_ != nullptr; }

  private:
    static constexpr std::align_val_t kAlignment{64};

    static Number* allocate(int64_t count) {
        const size_t bytes = static_cast<size_t>(count) * sizeof(Number);
        return static_cast<Number*>(::operator new[](bytes, kAlignment));
    }

    Number* data_;
};

}  // namespace
}  // namespace twostroke
