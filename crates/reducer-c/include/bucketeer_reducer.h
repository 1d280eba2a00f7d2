// Data-parallel training with bucketeer: gradients reduced in buckets while backward runs.
//
// Written from the crate bucketeer-reducer-c. Do not change it by hand.
//
// ERRORS. Functions return BUCKETEER_STATUS_OK or why they failed; bucketeer_last_error has the text of the calling thread's last
// failure. A call that fails writes none of its results, unless its comment says so. After ARGUMENT, HANDLE, STATE and MARK nothing
// has changed, nor after INVALID and MEMORY of a call that does not wait for other ranks: the step can go on. After other failures of
// a step the reducer is broken on all ranks; bucketeer_reducer_change_group makes it whole.
//
// HANDLES are numbers in the shape of pointers: nothing lies where they point. Whoever made one frees it, with the function of
// its type. A handle that is freed, made up or of another type is an error of the call. A rank lives until it and all its
// reducers are freed.
//
// MEMORY. What is passed is read or written during the call and not kept. Pointers must lead to as much memory as is said, which no
// other thread writes to meanwhile; null is refused, unless it is allowed, or the length is 0. All memory is the host's. Pointers
// that the library gives are good for as long as the function's comment says.
//
// THREADS. Every function may be called from every thread. Marks of one step come from any threads at once. Calls that wait for
// other ranks (new, change_group, broadcast, begin, finish, reduce_all, close) hold up their own thread alone: other calls on the
// same reducer are refused with STATE meanwhile, and marks with STATE or MARK. Each rank of a local world needs a thread. The
// library has threads of its own, so it is not to be unloaded.
//
// Ranks call the same functions that wait, in the same order, with the same sizes, as usual for collectives.


#ifndef BUCKETEER_REDUCER_H
#define BUCKETEER_REDUCER_H

#include <stddef.h>
#include <stdint.h>

// The version of the interface that this header describes.
#define BUCKETEER_ABI_VERSION 1

// Stands for a time that there is not.
#define BUCKETEER_NEVER UINT64_MAX

// How a call ended. Take each number that you do not know for a failure: later versions may have more.
enum BucketeerStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  BUCKETEER_STATUS_OK = 0,
  // An argument cannot be used: a null pointer, a length, a number that stands for nothing. Nothing was changed.
  BUCKETEER_STATUS_ARGUMENT = 1,
  // A handle was never made, is freed, or is of another kind. Nothing was changed.
  BUCKETEER_STATUS_HANDLE = 2,
  // The call does not fit what the reducer is doing: a second step, an end without a step, a free during a step. Nothing was
  // changed.
  BUCKETEER_STATUS_STATE = 3,
  // A mark was refused: a second one, a wrong size, a step that is over. Nothing was changed; the step can go on.
  BUCKETEER_STATUS_MARK = 4,
  // Parameters, options, a group, a root, a length or a weight cannot be used.
  BUCKETEER_STATUS_INVALID = 5,
  // Ranks made reducers of different things. All ranks get this.
  BUCKETEER_STATUS_DISAGREE = 6,
  // Parameters were not marked in a step that was to be finished. The reducer is broken.
  BUCKETEER_STATUS_MISSING = 7,
  // A step was given up after marks. The reducer is broken.
  BUCKETEER_STATUS_GIVEN_UP = 8,
  // A hook failed. The reducer is broken.
  BUCKETEER_STATUS_HOOK = 9,
  // A collective failed, or ranks did not find one another. The reducer is broken.
  BUCKETEER_STATUS_COMM = 10,
  // Another rank failed, and says why. The reducer is broken.
  BUCKETEER_STATUS_ELSEWHERE = 11,
  // Ranks ran out of data, where that is an error.
  BUCKETEER_STATUS_RAN_OUT = 12,
  // An earlier step failed: go on with bucketeer_reducer_change_group.
  BUCKETEER_STATUS_BROKEN = 13,
  // Memory cannot be had, or is in use.
  BUCKETEER_STATUS_MEMORY = 14,
  // This library was built without what is asked for.
  BUCKETEER_STATUS_UNSUPPORTED = 15,
  // A fault of this library. The reducer of the call is lost: free it.
  BUCKETEER_STATUS_PANIC = 16,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum BucketeerStatus BucketeerStatus;
#else
typedef int32_t BucketeerStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The type of an element. Gradients are floats or complex numbers; a broadcast takes all.
enum BucketeerDtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  BUCKETEER_DTYPE_F64 = 0,
  BUCKETEER_DTYPE_F32 = 1,
  BUCKETEER_DTYPE_F16 = 2,
  BUCKETEER_DTYPE_BF16 = 3,
  BUCKETEER_DTYPE_F8E4M3FN = 4,
  BUCKETEER_DTYPE_F8E5M2 = 5,
  BUCKETEER_DTYPE_F8E4M3FNUZ = 6,
  BUCKETEER_DTYPE_F8E5M2FNUZ = 7,
  BUCKETEER_DTYPE_F8E8M0FNU = 8,
  // Two elements in a byte.
  BUCKETEER_DTYPE_F4E2M1FN_X2 = 9,
  BUCKETEER_DTYPE_C32 = 10,
  BUCKETEER_DTYPE_C64 = 11,
  BUCKETEER_DTYPE_C128 = 12,
  BUCKETEER_DTYPE_I64 = 13,
  BUCKETEER_DTYPE_I32 = 14,
  BUCKETEER_DTYPE_I16 = 15,
  BUCKETEER_DTYPE_I8 = 16,
  BUCKETEER_DTYPE_U64 = 17,
  BUCKETEER_DTYPE_U32 = 18,
  BUCKETEER_DTYPE_U16 = 19,
  BUCKETEER_DTYPE_U8 = 20,
  BUCKETEER_DTYPE_BOOL = 21,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum BucketeerDtype BucketeerDtype;
#else
typedef int32_t BucketeerDtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How the gradients of all ranks become one.
enum BucketeerScale
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The mean over ranks.
  BUCKETEER_SCALE_MEAN = 0,
  // The sum.
  BUCKETEER_SCALE_SUM = 1,
  // The mean over samples: steps are begun with bucketeer_reducer_begin_weighted.
  BUCKETEER_SCALE_WEIGHTED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum BucketeerScale BucketeerScale;
#else
typedef int32_t BucketeerScale;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What becomes of a parameter that this rank did not use in a step.
enum BucketeerUnused
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It is an error of the step.
  BUCKETEER_UNUSED_REFUSE = 0,
  // The rank gives zeros, and gets the average if another rank used it; else its gradient is kept.
  BUCKETEER_UNUSED_AVERAGE = 1,
  // The same, but a rank that did not use it keeps its own gradient.
  BUCKETEER_UNUSED_KEEP_MINE = 2,
  // The same as average, but a bucket of unused parameters alone is not sent. Ranks have to agree on what is unused.
  BUCKETEER_UNUSED_SKIP = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum BucketeerUnused BucketeerUnused;
#else
typedef int32_t BucketeerUnused;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// When buckets are made again, by the order in which gradients became ready.
enum BucketeerRebuild
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Once, after the first step, or the second one of a static graph; never where unused parameters are allowed.
  BUCKETEER_REBUILD_AUTO = 0,
  // Once, also where unused parameters are allowed.
  BUCKETEER_REBUILD_ONCE = 1,
  // Never.
  BUCKETEER_REBUILD_NEVER = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum BucketeerRebuild BucketeerRebuild;
#else
typedef int32_t BucketeerRebuild;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What is launched in steps before buckets are made again.
enum BucketeerFirstStep
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // One bucket for each dtype, if buckets are made again later; else buckets.
  BUCKETEER_FIRST_STEP_ONE_LAUNCH = 0,
  // Buckets, in reverse order of definition.
  BUCKETEER_FIRST_STEP_BUCKETS = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum BucketeerFirstStep BucketeerFirstStep;
#else
typedef int32_t BucketeerFirstStep;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which bucket has the first cap.
enum BucketeerSmallBucket
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The one that is launched first.
  BUCKETEER_SMALL_BUCKET_FIRST = 0,
  // The one that is launched last.
  BUCKETEER_SMALL_BUCKET_LAST = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum BucketeerSmallBucket BucketeerSmallBucket;
#else
typedef int32_t BucketeerSmallBucket;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where a mean is divided, if gradients are sent in another dtype than they have.
enum BucketeerDivide
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // In the gradient's dtype, before it is rounded to that of the wire.
  BUCKETEER_DIVIDE_BEFORE_CAST = 0,
  // In the dtype of the wire.
  BUCKETEER_DIVIDE_ON_WIRE = 1,
  // After the sum, in the gradient's dtype.
  BUCKETEER_DIVIDE_AFTER_SUM = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum BucketeerDivide BucketeerDivide;
#else
typedef int32_t BucketeerDivide;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A group of ranks, as one of them sees it. Ended by bucketeer_group_free.
typedef struct BucketeerGroup BucketeerGroup;

// How a reducer behaves. Made by bucketeer_options_new, read by bucketeer_reducer_new, ended by bucketeer_options_free.
typedef struct BucketeerOptions BucketeerOptions;

// One rank of a world. Made by a bucketeer_rank function; ended by bucketeer_rank_close or bucketeer_rank_free.
typedef struct BucketeerRank BucketeerRank;

// One rank's side of data-parallel training. Made by bucketeer_reducer_new, ended by bucketeer_reducer_free.
typedef struct BucketeerReducer BucketeerReducer;

// A parameter whose gradient is reduced. Set what you do not use to 0.
typedef struct {
  // sizeof(BucketeerParam). It may grow in later versions.
  size_t size;
  // Its name, in UTF-8.
  const char *name;
  // Elements by dimension.
  const uint64_t *shape;
  // Strides by dimension, in elements; null for row-major.
  const uint64_t *strides;
  // How many dimensions there are; 0 for a scalar.
  size_t dims;
  // A number of BucketeerDtype, of the parameter and its gradient.
  int32_t dtype;
  // 1 if its gradient is rows and values: few of the rows of its first dimension. Else 0.
  int32_t sparse;
} BucketeerParam;

// A bucket, as it is told.
typedef struct {
  // sizeof(BucketeerBucket), set by the caller. It may grow in later versions.
  size_t size;
  // How many parameters it has.
  size_t params;
  // Bytes of their gradients, in their own dtype.
  uint64_t bytes;
  // The cap in force when it was closed, in bytes; 0 for a sparse one.
  uint64_t limit_bytes;
} BucketeerBucket;

// When what happened in a step on this rank, in nanoseconds since the step began; BUCKETEER_NEVER for what did not happen.
typedef struct {
  // sizeof(BucketeerTimeline), set by the caller. It may grow in later versions.
  size_t size;
  // How many buckets there were.
  size_t buckets;
  // Number of the step, from 0.
  uint64_t step;
  // When the first gradient came.
  uint64_t first_mark_ns;
  // When the last gradient came.
  uint64_t last_mark_ns;
  // When the first bucket was launched.
  uint64_t first_launch_ns;
  // When all had come.
  uint64_t finished_ns;
  // How long messages were on their way while gradients still came.
  uint64_t overlap_ns;
  // How long the step went on after its last gradient.
  uint64_t exposed_ns;
} BucketeerTimeline;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What the last failed call of this thread says, in UTF-8, with rank, step and parameter where there are any; empty if none
// failed. Calls that succeed leave it alone. The text is the library's, and good until this thread's next call that fails.
const char *bucketeer_last_error(void);

// How the last failed call of this thread ended; BUCKETEER_STATUS_OK if none failed.
BucketeerStatus bucketeer_last_error_status(void);

// The ranks to go on without, after the last failed call of this thread: those that went away or did not arrive. Writes at most
// `capacity` of them to `ranks`, which may be null if that is 0, and how many there are to `count`.
BucketeerStatus bucketeer_last_error_culprits(uint32_t *ranks,
                                              size_t capacity,
                                              size_t *count);

// A word for a status: `mark`. Null for a number that stands for none. The text is good for ever.
const char *bucketeer_status_name(int32_t status);

// The version of this library: `0.1.0`. The text is good for ever.
const char *bucketeer_version(void);

// The version of the interface that the library has. It is counted up when a function, a number or a field changes its meaning,
// and not when there are more of them.
uint32_t bucketeer_abi_version(void);

// Opens a world of `count` ranks in this process, 1 to 4096, each for a thread of its own, and writes their handles to `ranks`,
// which has room for all. No collective may take longer than `timeout_ns` nanoseconds; 0 stands for ten minutes.
BucketeerStatus bucketeer_rank_local(uint32_t count,
                                     uint64_t timeout_ns,
                                     BucketeerRank **ranks);

// Opens rank `number` of a world of `world_size` ranks, of which there are no others: each call is done at once, as if all ranks had
// sent what this one does, without arithmetic. For tests and dry runs.
BucketeerStatus bucketeer_rank_fake(uint32_t number,
                                    uint32_t world_size,
                                    BucketeerRank **rank);

// Opens this process's rank on NCCL: which one, and where the ranks meet, is what the launcher's environment variables say
// (torchrun, bucketeer launch, mpirun, srun); without any it is a world of one. The GPU is that of the local rank, or the only one.
// Waits for all ranks, at most `timeout_ns` nanoseconds, which is also the limit of a collective; 0 stands for ten minutes. When a
// group fails, the rank's last calls are written to `flight-rankN.json` in the folder `flight_records`; null for nowhere.
// BUCKETEER_STATUS_UNSUPPORTED if the library was built without NCCL.
BucketeerStatus bucketeer_rank_nccl(uint64_t timeout_ns,
                                    const char *flight_records,
                                    BucketeerRank **rank);

// Starts MPI, and opens this process's rank. A collective may take `timeout_ns` nanoseconds; 0 stands for ten minutes.
// BUCKETEER_STATUS_UNSUPPORTED if the library was built without MPI.
BucketeerStatus bucketeer_rank_mpi(uint64_t timeout_ns,
                                   BucketeerRank **rank);

// Writes the rank's number in its world, from 0.
BucketeerStatus bucketeer_rank_number(const BucketeerRank *rank, uint32_t *number);

// Writes how many ranks the world has.
BucketeerStatus bucketeer_rank_world_size(const BucketeerRank *rank, uint32_t *size);

// Ends a rank together with the others, who close theirs, and frees its handle. Its reducers are freed before:
// BUCKETEER_STATUS_STATE if not, and the rank stays. After any other failure it is freed all the same.
BucketeerStatus bucketeer_rank_close(BucketeerRank *rank);

// Frees a rank's handle; null is nothing. The rank leaves its world once its reducers are freed, too, and does not wait for
// others: calls of theirs that wait for it fail.
BucketeerStatus bucketeer_rank_free(BucketeerRank *rank);

// Joins the group of all ranks under a name; all ranks do so with the same name. Does not wait. Give each reducer a group of
// its own.
BucketeerStatus bucketeer_group_world(const BucketeerRank *rank,
                                      const char *name,
                                      BucketeerGroup **group);

// Joins a group of `count` ranks of the world, in the order of `members`; each of them does so with the same name and members.
// Does not wait.
BucketeerStatus bucketeer_group_new(const BucketeerRank *rank,
                                    const char *name,
                                    const uint32_t *members,
                                    size_t count,
                                    BucketeerGroup **group);

// Makes a group of the members of another one but `count` of them, in the same order: what is left after ranks went away. Each
// that stays calls it with the same list. The old group is given up.
BucketeerStatus bucketeer_group_shrink(const BucketeerRank *rank,
                                       const BucketeerGroup *group,
                                       const uint32_t *failed,
                                       size_t count,
                                       BucketeerGroup **smaller);

// Gives a group up: its calls fail on all ranks, those in flight and all later ones.
BucketeerStatus bucketeer_group_abort(const BucketeerRank *rank, const BucketeerGroup *group);

// Writes at most `capacity` of the members' numbers to `members`, which may be null if that is 0, and how many there are to
// `count`.
BucketeerStatus bucketeer_group_members(const BucketeerGroup *group,
                                        uint32_t *members,
                                        size_t capacity,
                                        size_t *count);

// Writes this rank's place among the group's members, from 0.
BucketeerStatus bucketeer_group_place(const BucketeerGroup *group, uint32_t *place);

// Frees a group's handle; null is nothing. Reducers that were made on it go on.
BucketeerStatus bucketeer_group_free(BucketeerGroup *group);

// Makes options that are the defaults: buckets of 1 MiB, then 25 MiB; the mean over ranks; no unused parameters.
BucketeerStatus bucketeer_options_new(BucketeerOptions **options);

// Frees options; null is nothing. Reducers that were made of them go on.
BucketeerStatus bucketeer_options_free(BucketeerOptions *options);

// How large buckets may be, in bytes: the one that has the first cap, and all others.
BucketeerStatus bucketeer_options_set_caps(BucketeerOptions *options,
                                           uint64_t first_bytes,
                                           uint64_t rest_bytes);

// The same with a cap for each bucket, in bytes; the last repeats. At least one.
BucketeerStatus bucketeer_options_set_cap_list(BucketeerOptions *options,
                                               const uint64_t *caps_bytes,
                                               size_t count);

// How gradients become one: a number of BucketeerScale.
BucketeerStatus bucketeer_options_set_scale(BucketeerOptions *options, int32_t scale);

// What becomes of unused parameters: a number of BucketeerUnused.
BucketeerStatus bucketeer_options_set_unused(BucketeerOptions *options, int32_t unused);

// Whether every step marks the same parameters equally often, on this rank: 0 or 1.
BucketeerStatus bucketeer_options_set_static_graph(BucketeerOptions *options, int32_t static_graph);

// When buckets are made again: a number of BucketeerRebuild.
BucketeerStatus bucketeer_options_set_rebuild(BucketeerOptions *options, int32_t rebuild);

// What is launched before: a number of BucketeerFirstStep.
BucketeerStatus bucketeer_options_set_first_step(BucketeerOptions *options, int32_t first_step);

// Which bucket has the first cap: a number of BucketeerSmallBucket.
BucketeerStatus bucketeer_options_set_small_bucket(BucketeerOptions *options, int32_t small_bucket);

// Sends gradients in another dtype, a float of BucketeerDtype, and divides a mean where a number of BucketeerDivide says.
BucketeerStatus bucketeer_options_set_wire(BucketeerOptions *options,
                                           int32_t dtype,
                                           int32_t divide);

// Sends gradients in their own dtype, as options do at first.
BucketeerStatus bucketeer_options_clear_wire(BucketeerOptions *options);

// How long a collective may take, in nanoseconds; 0 stands for the rank's own limit.
BucketeerStatus bucketeer_options_set_timeout(BucketeerOptions *options, uint64_t timeout_ns);

// What is done with gradients between ranks, by name. There is `none` so far, the scale as it is set, which null says, too.
BucketeerStatus bucketeer_options_set_hook(BucketeerOptions *options,
                                           const char *hook);

// Makes a reducer of `count` parameters, in an order that is the same on all ranks of the group, and compares it with the other
// ranks'. Waits for them. `options` may be null for the defaults. Nothing that is passed is kept: handles may be freed, memory
// used again. Give it a group of its own.
BucketeerStatus bucketeer_reducer_new(const BucketeerRank *rank,
                                      const BucketeerGroup *group,
                                      const BucketeerParam *params,
                                      size_t count,
                                      const BucketeerOptions *options,
                                      BucketeerReducer **reducer);

// Frees a reducer; null is nothing. BUCKETEER_STATUS_STATE during a step, or while memory of it is locked: finish the step or give
// it up, unlock, then free.
BucketeerStatus bucketeer_reducer_free(BucketeerReducer *reducer);

// Goes on with another group, after ranks have left or come, or after a failure, which broke the old one: all its ranks call
// this, and ranks that are new make a reducer on it. Between steps.
BucketeerStatus bucketeer_reducer_change_group(BucketeerReducer *reducer,
                                               const BucketeerGroup *group);

// Gives all ranks the tensors that one of them has, `root`, a place in the group: parameters at the start, or buffers of the model
// before a forward. All ranks call it with the same tensors: `tensors[i]` has `bytes[i]` bytes of the dtype that `dtypes[i]`, a
// number of BucketeerDtype, stands for. Tensors share no memory. Between steps, or in one that is reduced, in which other threads that mark or end it
// may have to wait for this call.
BucketeerStatus bucketeer_reducer_broadcast(BucketeerReducer *reducer,
                                            size_t root,
                                            void *const *tensors,
                                            const size_t *bytes,
                                            const int32_t *dtypes,
                                            size_t count);

// Begins a step whose gradients are reduced, and writes its number, from 0, to `number`, unless that is null. Before the forward, so
// that all is ready when backward marks gradients. What the last step came to can no longer be read. May wait for other ranks.
BucketeerStatus bucketeer_reducer_begin(BucketeerReducer *reducer,
                                        uint64_t *number);

// The same for a mean over samples, of which this rank had `samples` in this step: 0 or more, and more than 0 on some rank.
BucketeerStatus bucketeer_reducer_begin_weighted(BucketeerReducer *reducer,
                                                 double samples,
                                                 uint64_t *number);

// Begins a step whose gradients are kept here and added to those of the next reduced step; nothing is sent. Ended by
// bucketeer_reducer_finish.
BucketeerStatus bucketeer_reducer_begin_local(BucketeerReducer *reducer);

// Forgets what local steps kept. Between steps.
BucketeerStatus bucketeer_reducer_clear_local(BucketeerReducer *reducer);

// Ends a step: waits for all buckets, after which results can be read until the next step begins. Marks of other threads come
// before. A failure breaks the reducer on all ranks.
BucketeerStatus bucketeer_reducer_finish(BucketeerReducer *reducer);

// Gives a step up. Harmless if nothing was marked; else it breaks the reducer on all ranks, so that none waits for this one. What
// a local step was given stays.
BucketeerStatus bucketeer_reducer_give_up(BucketeerReducer *reducer);

// Writes how many buckets there are. Between steps.
BucketeerStatus bucketeer_reducer_bucket_count(BucketeerReducer *reducer, size_t *count);

// Describes a bucket, by its place in the order of launches, and writes at most `capacity` indices of its parameters to `params`,
// which may be null if that is 0, in the order in which they lie. Between steps.
BucketeerStatus bucketeer_reducer_bucket(BucketeerReducer *reducer,
                                         size_t index,
                                         BucketeerBucket *bucket,
                                         size_t *params,
                                         size_t capacity);

// Writes the generation of the buckets, which is counted up each time they are made again. Between steps.
BucketeerStatus bucketeer_reducer_generation(BucketeerReducer *reducer, uint64_t *generation);

// Tells when what happened in the last step that was reduced; BUCKETEER_STATUS_STATE if there was none. Fields that this library does
// not know are left alone. Between steps.
BucketeerStatus bucketeer_reducer_timeline(BucketeerReducer *reducer,
                                           BucketeerTimeline *timeline);

// A parameter's gradient is final: takes a copy of its `bytes` bytes, and launches what that completes. Elements come in the
// parameter's own order of memory (row-major, if that has holes). In a local step, it is added to what is kept. From any thread.
BucketeerStatus bucketeer_reducer_ready(BucketeerReducer *reducer,
                                        size_t param,
                                        const void *gradient,
                                        size_t bytes);

// The same for a gradient of other strides, in elements, one for each of `dims` dimensions; `bytes` reach from its first element to
// behind its last one. Not in a local step. From any thread.
BucketeerStatus bucketeer_reducer_ready_strided(BucketeerReducer *reducer,
                                                size_t param,
                                                const void *gradient,
                                                size_t bytes,
                                                const uint64_t *strides,
                                                size_t dims);

// The same for a sparse parameter: `count` rows of the first dimension, in any order, also more than once, and the values of each,
// end to end. From any thread.
BucketeerStatus bucketeer_reducer_ready_sparse(BucketeerReducer *reducer,
                                               size_t param,
                                               const uint64_t *rows,
                                               size_t count,
                                               const void *values,
                                               size_t bytes);

// The same for a gradient that was written to the parameter's slot, which is unlocked again. From any thread.
BucketeerStatus bucketeer_reducer_ready_in_place(BucketeerReducer *reducer, size_t param);

// No gradient comes for a parameter in this step, where options allow it. Not needed, but it has buckets launched earlier. Not
// in a local step. From any thread.
BucketeerStatus bucketeer_reducer_unused(BucketeerReducer *reducer,
                                         size_t param);

// Locks the slot of a parameter, where its gradient lies in its bucket, and tells where that is and how many bytes it has: in the
// parameter's own order of elements, none for a sparse one, and in another dtype if the options set a wire. The bytes may be
// written and read until bucketeer_reducer_unlock, and not behind it. What they hold stays from step to step, also where
// buckets are made again. Not while results can be read, nor while the bucket is on its way. From any thread.
BucketeerStatus bucketeer_reducer_slot_lock(BucketeerReducer *reducer,
                                            size_t param,
                                            void **slot,
                                            size_t *bytes);

// Ends a lock of bucketeer_reducer_slot_lock or bucketeer_reducer_result_lock: the pointer is no longer good. A step is not begun,
// finished or given up while memory is locked. From any thread.
BucketeerStatus bucketeer_reducer_unlock(BucketeerReducer *reducer,
                                         size_t param);

// Reduces gradients that are all there after backward, in place: a step of its own. `gradients[i]` has `bytes[i]` bytes, in the
// order of the parameters, of which there are `count`; null for those that this step did not use. Gradients share no memory.
// Results can be read as after a step; what is kept is left alone in `gradients`.
BucketeerStatus bucketeer_reducer_reduce_all(BucketeerReducer *reducer,
                                             void *const *gradients,
                                             const size_t *bytes,
                                             size_t count);

// The same for a mean over samples, of which this rank had `samples`.
BucketeerStatus bucketeer_reducer_reduce_all_weighted(BucketeerReducer *reducer,
                                                      void *const *gradients,
                                                      const size_t *bytes,
                                                      size_t count,
                                                      double samples);

// Copies a parameter's reduced gradient to `target`, which has `bytes` bytes: in the parameter's own dtype and order. Writes 1
// to `kept` if its gradient is to stay as it was, as no rank used it or this one keeps its own, and leaves `target` alone; else
// 0. `kept` may be null. After a step is finished, until the next one begins. From any thread.
BucketeerStatus bucketeer_reducer_copy_out(BucketeerReducer *reducer,
                                           size_t param,
                                           void *target,
                                           size_t bytes,
                                           int32_t *kept);

// Locks a parameter's reduced gradient to be read where it lies, and tells where that is and how many bytes it has: good until
// bucketeer_reducer_unlock. If the parameter's gradient is kept, writes null and 0, and locks nothing. Not for gradients that are
// sparse, or lie there in another dtype: copy those. After a step is finished. From any thread.
BucketeerStatus bucketeer_reducer_result_lock(BucketeerReducer *reducer,
                                              size_t param,
                                              const void **result,
                                              size_t *bytes);

// Copies a sparse parameter's reduced gradient: the rows that any rank gave, rising, and the values of each, end to end. Writes
// at most `capacity` of the rows and `value_capacity` bytes of values; how many there are goes to `count` and
// `value_bytes`. So ask with capacities of 0 and null first, then with memory. Writes 1 to `kept`, unless that is null, if the
// parameter's gradient is to stay as it was; there are no rows then. After a step is finished. From any thread.
BucketeerStatus bucketeer_reducer_copy_out_sparse(BucketeerReducer *reducer,
                                                  size_t param,
                                                  uint64_t *rows,
                                                  size_t capacity,
                                                  size_t *count,
                                                  void *values,
                                                  size_t value_capacity,
                                                  size_t *value_bytes,
                                                  int32_t *kept);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BUCKETEER_REDUCER_H */
