// The pool of threads that thread_pool.hpp describes.
#include "thread_pool.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace twostroke {
namespace {

// About 50 microseconds: longer than Python needs from one kernel to the next.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#else
    std::this_thread::yield();
#endif
}

struct Loop {
    Task task = nullptr;
    void* context = nullptr;
    int64_t count = 0;
};

class Pool {
  public:
    ~Pool() { resize(0); }

    void resize(int workers) {
        while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
        if (workers != size_) replace_workers(workers);
        busy_.store(false, std::memory_order_release);
    }

    void run(int64_t count, Task task, void* context) {
        // Without workers, or if another caller's loop has them, this thread works alone.
        if (size_ == 0 || count < 2 || busy_.exchange(true, std::memory_order_acquire)) {
            for (int64_t i = 0; i < count; ++i) task(context, i);
            return;
        }
        // No worker reads loop_ now: the loop before ended when all of them had left.
        loop_ = {task, context, count};
        next_.store(0, std::memory_order_relaxed);
        open_.store(true, std::memory_order_seq_cst);
        generation_.fetch_add(1, std::memory_order_seq_cst);
        if (sleeping_.load(std::memory_order_seq_cst) > 0) {
            { std::lock_guard<std::mutex> lock(mutex_); }
            wake_.notify_all();
        }
        run_remaining_tasks();
        open_.store(false, std::memory_order_seq_cst);
        while (inside_.load(std::memory_order_seq_cst) > 0) pause();
        busy_.store(false, std::memory_order_release);
    }

    int threads() const { return size_ + 1; }

  private:
    void replace_workers(int workers) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            generation_.fetch_add(1);
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
        workers_.clear();
        stopping_ = false;
        // Read here: a new thread might read a later generation and miss the loop before it.
        const uint64_t generation = generation_.load();
        for (int i = 0; i < workers; ++i)
            workers_.emplace_back([this, generation] { work(generation); });
        size_ = workers;
    }

    void run_remaining_tasks() {
        for (;;) {
            const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
            if (index >= loop_.count) return;
            loop_.task(loop_.context, index);
        }
    }

    void work(uint64_t generation) {
        for (;;) {
            wait_for_other_than(generation);
            if (stopping_) return;
            generation = generation_.load();
            // Counted first, checked second: the caller closes first and checks inside_ second.
            inside_.fetch_add(1, std::memory_order_seq_cst);
            if (open_.load(std::memory_order_seq_cst)) run_remaining_tasks();
            inside_.fetch_sub(1, std::memory_order_seq_cst);
        }
    }

    void wait_for_other_than(uint64_t generation) {
        for (int i = 0; i < kSpins; ++i) {
            if (generation_.load(std::memory_order_acquire) != generation) return;
            pause();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock,
                   [&] { return generation_.load(std::memory_order_seq_cst) != generation; });
        sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<bool> stopping_{false};
    std::atomic<bool> busy_{false};  // A loop runs, or the workers are being replaced.
    std::atomic<int> size_{0};       // Of workers_, for threads that have not set busy_.
    Loop loop_;
    alignas(64) std::atomic<uint64_t> generation_{0};
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<bool> open_{false};
    std::atomic<int> inside_{0};
    std::atomic<int> sleeping_{0};
};

// Never destroyed: at exit, after a fork, its threads may be gone, and joining them would hang.
Pool& pool() {
    static Pool* const instance = new Pool;
    return *instance;
}

}  // namespace

double now() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(time).count();
}

void set_num_threads(int count) { pool().resize(count > 1 ? count - 1 : 0); }

int num_threads() { return pool().threads(); }

void run_tasks(int64_t count, Task task, void* context) { pool().run(count, task, context); }

}  // namespace twostroke
