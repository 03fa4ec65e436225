// A pool of threads for loops that take a few microseconds to a few milliseconds.
//
// Work is cut into more tasks than there are threads, and threads take the next one from a shared
// counter. The caller works too and waits only for tasks that other threads have begun: if a thread
// gets no core, it delays nothing. Idle threads spin briefly, as the next loop is near, then sleep.
#pragma once

#include <cstdint>

namespace twostroke {

using Task = void (*)(void* context, int64_t index);

// Sets how many threads run loops, the caller's included. Waits until no loop runs.
void set_num_threads(int count);
int num_threads();

// Calls task(context, i) once for every i in [0, count), in any order; returns when all have run.
// The workers help one loop at a time: a second caller's loop runs on its own thread alone.
void run_tasks(int64_t count, Task task, void* context);

// Seconds on a clock that never goes back.
double now();

// run_tasks for a callable object.
template <typename Body>
void parallel_for(int64_t count, Body& body) {
    const Task task = [](void* context, int64_t index) { (*static_cast<Body*>(context))(index); };
    run_tasks(count, task, &body);
}

}  // namespace twostroke
