// The C interface: two plan buffers, so that a refused plan leaves the last one as it was.
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "work.h"

namespace attnloom::scheduler {

void fail(const char* format, ...) {
  Failure failure;
  va_list args;
  va_start(args, format);
  std::vsnprintf(failure.text, sizeof(failure.text), format, args);
  va_end(args);
  throw failure;
}

struct Planner {
  Job job;
  Partitioners partitioners;
  EmitScratch emit;
  Buffer buffers[2];
  int active = 0;
  Failure error{};

  PlanSummary plan(const PlanInput& input) {
    check_input(input);
    collect_tiles(input, job);
    Partitioner kind = kNothing;
    Partition& best = divide(job, partitioners, kind);
    PlanSummary summary = write_plan(job, best, emit, buffers[1 - active]);
    summary.partitioner = job.tiles.empty() ? kNothing : kind;
    active = 1 - active;
    return summary;
  }
};

}  // namespace attnloom::scheduler

using attnloom::scheduler::Failure;
using attnloom::scheduler::Planner;

extern "C" {

void* attnloom_planner_create() { return new (std::nothrow) Planner(); }

void attnloom_planner_destroy(void* planner) { delete static_cast<Planner*>(planner); }

int attnloom_planner_plan(void* handle, const attnloom::PlanInput* input, attnloom::PlanSummary* summary) {
  Planner* planner = static_cast<Planner*>(handle);
  try {
    *summary = planner->plan(*input);
    return 0;
  } catch (const Failure& failure) {
    planner->error = failure;
  } catch (const std::exception&) {  // bad_alloc, length_error
    std::snprintf(planner->error.text, sizeof(planner->error.text), "out of memory for the plan of %d tokens",
                  input->index->num_tokens);
  }
  return 1;
}

const char* attnloom_planner_error(const void* planner) { return static_cast<const Planner*>(planner)->error.text; }

void attnloom_scheduler_sizes(int64_t* sizes) {
  sizes[0] = sizeof(attnloom::PlanInput);
  sizes[1] = sizeof(attnloom::PlanSummary);
  sizes[2] = sizeof(attnloom::PlanHeader);
  sizes[3] = sizeof(attnloom::Item);
  sizes[4] = sizeof(attnloom::IndexView);
}

}  // extern "C"
