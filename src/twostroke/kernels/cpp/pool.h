// A pool of threads for loops of a few microseconds to a few milliseconds.
//
// Work is cut into more tasks than there are threads, and threads take the next one from a shared counter. The caller
// works too and waits only for tasks that others have begun: on a machine that runs something else, a thread that is
// not given a core holds up nobody. Idle threads spin briefly, since the next loop follows at once, then sleep.
#pragma once

#include <cstdint>

namespace twostroke {

using Task = void (*)(void* context, int64_t index);

// Sets how many threads run loops, the caller's included, once no loop runs.
void set_num_threads(int count);
int num_threads();

// Calls task(context, i) for every i in [0, count), each once, in any order, and returns when all have returned. The
// pool helps one loop at a time: that of a second thread (two engines in a process) runs on that thread alone.
void run_tasks(int64_t count, Task task, void* context);

// Seconds on a clock that never falls.
double now();

template <typename Body>
void parallel_for(int64_t count, Body& body) {
    run_tasks(count, [](void* context, int64_t index) { (*static_cast<Body*>(context))(index); }, &body);
}

}  // namespace twostroke
