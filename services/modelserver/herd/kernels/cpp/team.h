// A fixed team of threads that run one function together, with a barrier between its parts.
//
// A model step is some two hundred short parts: a barrier must cost about a microsecond, so whoever
// waits spins, for a bounded time; then it yields, for on two cores the one that is waited for may
// have been sent away. Work is claimed piece by piece, so that a thread that lost its core holds up
// one piece and not its half of the part.

#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace herd {

inline void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

class Team {
 public:
  explicit Team(int threads) : size_(threads < 1 ? 1 : threads) {
    for (int i = 1; i < size_; ++i) others_.emplace_back([this] { serve(); });
  }

  ~Team() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
      ++calls_;
    }
    called_.notify_all();
    for (auto& other : others_) other.join();
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Whether this is the thread that called `run`.
  bool leads() const { return std::this_thread::get_id() == leader_; }

  // Everyone runs `work`; returns when all have ended. One call at a time.
  void run(const std::function<void()>& work) {
    next_.store(0, std::memory_order_relaxed);
    leader_ = std::this_thread::get_id();
    if (size_ == 1) return work();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      ++calls_;
    }
    called_.notify_all();
    work();
    barrier();
  }

  // The next piece of the part that is under way, to be done by whoever asks; from 0.
  int claim() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Nobody leaves before all have come; pieces are counted from 0 again.
  void barrier() {
    if (size_ == 1) {
      next_.store(0, std::memory_order_relaxed);
      return;
    }
    const int round = round_.load(std::memory_order_relaxed);
    if (came_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      came_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < kSpins)
        rest();
      else
        std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 4000;

  void serve() {
    int64_t seen = 0;
    while (true) {
      const std::function<void()>* work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        called_.wait(lock, [&] { return calls_ != seen; });
        seen = calls_;
        if (ending_) return;
        work = work_;
      }
      (*work)();
      barrier();
    }
  }

  const int size_;
  std::vector<std::thread> others_;
  std::mutex mutex_;
  std::condition_variable called_;
  std::thread::id leader_;
  const std::function<void()>* work_ = nullptr;
  int64_t calls_ = 0;
  bool ending_ = false;
  alignas(64) std::atomic<int> came_{0};
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> next_{0};
};

}  // namespace herd
