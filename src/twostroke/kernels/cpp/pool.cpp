#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define RELAX() _mm_pause()
#elif defined(__aarch64__)
#define RELAX() asm volatile("yield")
#else
#define RELAX() std::this_thread::yield()
#endif

namespace twostroke {
namespace {

constexpr int kSpins = 2000;  // About 50 microseconds, longer than Python needs from one kernel to the next.

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
        // Another thread's loop has the workers, if there are any: alone, then.
        if (size_ == 0 || count < 2 || busy_.exchange(true, std::memory_order_acquire)) {
            for (int64_t i = 0; i < count; ++i) task(context, i);
            return;
        }
        // Nobody is inside: the loop before ended only when all who had entered had left.
        loop_ = {task, context, count};
        next_.store(0, std::memory_order_relaxed);
        open_.store(true, std::memory_order_seq_cst);
        generation_.fetch_add(1, std::memory_order_seq_cst);
        if (sleeping_.load(std::memory_order_seq_cst) > 0) {
            { std::lock_guard<std::mutex> lock(mutex_); }
            wake_.notify_all();
        }
        take_tasks();
        open_.store(false, std::memory_order_seq_cst);
        while (inside_.load(std::memory_order_seq_cst) > 0) RELAX();
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
        // From this generation on: one that a new thread reads itself may be later than what it must not miss.
        const uint64_t seen = generation_.load();
        for (int i = 0; i < workers; ++i) workers_.emplace_back([this, seen] { work(seen); });
        size_ = workers;
    }

    void take_tasks() {
        for (;;) {
            const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
            if (index >= loop_.count) return;
            loop_.task(loop_.context, index);
        }
    }

    void work(uint64_t seen) {
        for (;;) {
            wait_for_news(seen);
            if (stopping_) return;
            seen = generation_.load();
            // Announce first, look second: the caller closes first and looks at inside_ second.
            inside_.fetch_add(1, std::memory_order_seq_cst);
            if (open_.load(std::memory_order_seq_cst)) take_tasks();
            inside_.fetch_sub(1, std::memory_order_seq_cst);
        }
    }

    void wait_for_news(uint64_t seen) {
        for (int i = 0; i < kSpins; ++i) {
            if (generation_.load(std::memory_order_acquire) != seen) return;
            RELAX();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
        sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<bool> stopping_{false};
    std::atomic<bool> busy_{false};  // A loop runs, or the workers are being replaced.
    std::atomic<int> size_{0};       // Of workers_, for those who are not busy_ themselves.
    Loop loop_;
    alignas(64) std::atomic<uint64_t> generation_{0};
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<bool> open_{false};
    std::atomic<int> inside_{0};
    std::atomic<int> sleeping_{0};
};

// Never destroyed: at exit its threads may be gone already (a fork, say), and joining them would hang.
Pool& pool() {
    static Pool* instance = new Pool;
    return *instance;
}

}  // namespace

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void set_num_threads(int count) { pool().resize(count > 1 ? count - 1 : 0); }

int num_threads() { return pool().threads(); }

void run_tasks(int64_t count, Task task, void* context) { pool().run(count, task, context); }

}  // namespace twostroke
