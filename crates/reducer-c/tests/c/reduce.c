// Two ranks as threads reduce gradients: marks in the order of a backward pass, slots, weights, unused parameters, bulk, and
// what happens when something is marked twice. The tests of bucketeer-reducer-c compile and run it; README.md shows parts.

#include "bucketeer_reducer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 2

// Ends the program with the place and the text of the last failure.
#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        BucketeerStatus status = (call);                                                                               \
        if (status != BUCKETEER_STATUS_OK) {                                                                           \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, bucketeer_status_name(status), bucketeer_last_error());     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: not so: %s (last failure: %s)\n", __LINE__, #condition, bucketeer_last_error()); \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static BucketeerReducer *make(BucketeerRank *rank, const char *name, const BucketeerOptions *options) {
    uint64_t w_shape[] = {2, 2}, b_shape[] = {2};
    BucketeerParam params[] = {
        {.size = sizeof(BucketeerParam), .name = "w", .shape = w_shape, .dims = 2, .dtype = BUCKETEER_DTYPE_F32},
        {.size = sizeof(BucketeerParam), .name = "b", .shape = b_shape, .dims = 1, .dtype = BUCKETEER_DTYPE_F32},
    };
    BucketeerGroup *group;
    BucketeerReducer *reducer;
    CHECK(bucketeer_group_world(rank, name, &group));
    CHECK(bucketeer_reducer_new(rank, group, params, 2, options, &reducer));
    CHECK(bucketeer_group_free(group));
    return reducer;
}

// A training of three steps: the mean over ranks, marked by backward.
static void marks(BucketeerRank *rank, float mine) {
    // [README
    BucketeerReducer *reducer = make(rank, "marks", NULL);
    for (uint64_t step = 0; step < 3; step++) {
        float w[] = {mine, 2 * mine, 3, (float)step}, b[] = {mine, -mine};
        uint64_t number;
        CHECK(bucketeer_reducer_begin(reducer, &number));
        EXPECT(number == step);
        // Backward runs from the end.
        CHECK(bucketeer_reducer_ready(reducer, 1, b, sizeof b));
        CHECK(bucketeer_reducer_ready(reducer, 0, w, sizeof w));
        CHECK(bucketeer_reducer_finish(reducer));
        CHECK(bucketeer_reducer_copy_out(reducer, 0, w, sizeof w, NULL));
        CHECK(bucketeer_reducer_copy_out(reducer, 1, b, sizeof b, NULL));
        // Ranks 0 and 1 gave 1 and 2.
        EXPECT(w[0] == 1.5f && w[1] == 3 && w[2] == 3 && w[3] == (float)step);
        EXPECT(b[0] == 1.5f && b[1] == -1.5f);
    }
    CHECK(bucketeer_reducer_free(reducer));
    // README]
}

// A second mark is refused, says why, and changes nothing.
static void second_mark(BucketeerRank *rank, float mine) {
    BucketeerReducer *reducer = make(rank, "second", NULL);
    float w[] = {mine, mine, mine, mine}, b[] = {mine, mine};
    CHECK(bucketeer_reducer_begin(reducer, NULL));
    CHECK(bucketeer_reducer_ready(reducer, 1, b, sizeof b));
    EXPECT(bucketeer_reducer_ready(reducer, 1, b, sizeof b) == BUCKETEER_STATUS_MARK);
    EXPECT(bucketeer_last_error_status() == BUCKETEER_STATUS_MARK);
    EXPECT(strstr(bucketeer_last_error(), "step 0, parameter 1 (b): it is marked a second time in this step"));
    EXPECT(bucketeer_reducer_ready(reducer, 0, w, 4) == BUCKETEER_STATUS_MARK);
    EXPECT(strstr(bucketeer_last_error(), "its gradient has 4 bytes"));
    CHECK(bucketeer_reducer_ready(reducer, 0, w, sizeof w));
    EXPECT(bucketeer_reducer_begin(reducer, NULL) == BUCKETEER_STATUS_STATE);
    EXPECT(bucketeer_reducer_free(reducer) == BUCKETEER_STATUS_STATE);
    CHECK(bucketeer_reducer_finish(reducer));
    EXPECT(bucketeer_reducer_ready(reducer, 0, w, sizeof w) == BUCKETEER_STATUS_MARK);
    EXPECT(strstr(bucketeer_last_error(), "the step is over"));
    CHECK(bucketeer_reducer_copy_out(reducer, 1, b, sizeof b, NULL));
    EXPECT(b[0] == 1.5f);
    CHECK(bucketeer_reducer_free(reducer));
    EXPECT(bucketeer_reducer_begin(reducer, NULL) == BUCKETEER_STATUS_HANDLE);
}

// Gradients are written to their slots, and read there.
static void slots(BucketeerRank *rank, float mine) {
    BucketeerReducer *reducer = make(rank, "slots", NULL);
    CHECK(bucketeer_reducer_begin(reducer, NULL));
    for (size_t param = 2; param-- > 0;) {
        void *slot;
        size_t bytes;
        CHECK(bucketeer_reducer_slot_lock(reducer, param, &slot, &bytes));
        EXPECT(bytes == (param == 0 ? 16 : 8));
        for (size_t at = 0; at < bytes / sizeof(float); at++) {
            ((float *)slot)[at] = mine + (float)at;
        }
        EXPECT(bucketeer_reducer_ready_in_place(reducer, param) == BUCKETEER_STATUS_STATE);
        EXPECT(bucketeer_reducer_finish(reducer) == BUCKETEER_STATUS_STATE);
        CHECK(bucketeer_reducer_unlock(reducer, param));
        CHECK(bucketeer_reducer_ready_in_place(reducer, param));
    }
    CHECK(bucketeer_reducer_finish(reducer));
    const void *result;
    size_t bytes;
    CHECK(bucketeer_reducer_result_lock(reducer, 0, &result, &bytes));
    EXPECT(bytes == 16 && ((const float *)result)[3] == 4.5f);
    EXPECT(bucketeer_reducer_begin(reducer, NULL) == BUCKETEER_STATUS_STATE);
    CHECK(bucketeer_reducer_unlock(reducer, 0));
    BucketeerTimeline times = {.size = sizeof times};
    CHECK(bucketeer_reducer_timeline(reducer, &times));
    EXPECT(times.step == 0 && times.buckets == 1 && times.first_mark_ns <= times.last_mark_ns);
    EXPECT(times.finished_ns >= times.last_mark_ns && times.finished_ns != BUCKETEER_NEVER);
    CHECK(bucketeer_reducer_free(reducer));
}

// The mean over samples: rank 0 had one, rank 1 three.
static void weights(BucketeerRank *rank, float mine) {
    BucketeerOptions *options;
    CHECK(bucketeer_options_new(&options));
    CHECK(bucketeer_options_set_scale(options, BUCKETEER_SCALE_WEIGHTED));
    EXPECT(bucketeer_options_set_scale(options, 3) == BUCKETEER_STATUS_ARGUMENT);
    BucketeerReducer *reducer = make(rank, "weights", options);
    CHECK(bucketeer_options_free(options));
    float w[] = {mine, 4, 4, 4}, b[] = {mine, mine};
    EXPECT(bucketeer_reducer_begin(reducer, NULL) == BUCKETEER_STATUS_INVALID);
    CHECK(bucketeer_reducer_begin_weighted(reducer, mine == 1 ? 1 : 3, NULL));
    CHECK(bucketeer_reducer_ready(reducer, 1, b, sizeof b));
    CHECK(bucketeer_reducer_ready(reducer, 0, w, sizeof w));
    CHECK(bucketeer_reducer_finish(reducer));
    CHECK(bucketeer_reducer_copy_out(reducer, 0, w, sizeof w, NULL));
    EXPECT(w[0] == 1.75f && w[1] == 4);
    CHECK(bucketeer_reducer_free(reducer));
}

// Rank 0 does not use b in the first step, and no rank does in the second one.
static void unused(BucketeerRank *rank, float mine) {
    BucketeerOptions *options;
    CHECK(bucketeer_options_new(&options));
    CHECK(bucketeer_options_set_unused(options, BUCKETEER_UNUSED_AVERAGE));
    BucketeerReducer *reducer = make(rank, "unused", options);
    CHECK(bucketeer_options_free(options));
    for (int step = 0; step < 2; step++) {
        float w[] = {mine, mine, mine, mine}, b[] = {8, 8};
        int32_t kept;
        CHECK(bucketeer_reducer_begin(reducer, NULL));
        if (step == 0 && mine == 2) {
            CHECK(bucketeer_reducer_ready(reducer, 1, b, sizeof b));
        } else {
            CHECK(bucketeer_reducer_unused(reducer, 1));
        }
        CHECK(bucketeer_reducer_ready(reducer, 0, w, sizeof w));
        CHECK(bucketeer_reducer_finish(reducer));
        CHECK(bucketeer_reducer_copy_out(reducer, 1, b, sizeof b, &kept));
        EXPECT(kept == (step == 1) && b[0] == (step == 0 ? 4 : 8));
    }
    CHECK(bucketeer_reducer_free(reducer));
}

// All gradients at once, after a local step and in place.
static void bulk(BucketeerRank *rank, float mine) {
    BucketeerReducer *reducer = make(rank, "bulk", NULL);
    float w[] = {mine, mine, mine, mine}, b[] = {mine, 1};
    CHECK(bucketeer_reducer_begin_local(reducer));
    CHECK(bucketeer_reducer_ready(reducer, 0, w, sizeof w));
    CHECK(bucketeer_reducer_ready(reducer, 1, b, sizeof b));
    CHECK(bucketeer_reducer_finish(reducer));
    void *gradients[] = {w, b};
    size_t bytes[] = {sizeof w, sizeof b};
    CHECK(bucketeer_reducer_reduce_all(reducer, gradients, bytes, 2));
    EXPECT(w[0] == 3 && w[3] == 3 && b[0] == 3 && b[1] == 2);
    void *twice[] = {w, w + 1};
    EXPECT(bucketeer_reducer_reduce_all(reducer, twice, bytes, 2) == BUCKETEER_STATUS_ARGUMENT);
    EXPECT(strstr(bucketeer_last_error(), "`gradients[0]` and `gradients[1]` share memory"));
    CHECK(bucketeer_reducer_free(reducer));
}

// What rank 1 has at the start goes to all, and buckets are told.
static void start(BucketeerRank *rank, float mine) {
    BucketeerReducer *reducer = make(rank, "start", NULL);
    float w[] = {mine, mine, mine, mine};
    int64_t seen = (int64_t)mine;
    void *tensors[] = {w, &seen};
    size_t bytes[] = {sizeof w, sizeof seen};
    int32_t dtypes[] = {BUCKETEER_DTYPE_F32, BUCKETEER_DTYPE_I64};
    CHECK(bucketeer_reducer_broadcast(reducer, 1, tensors, bytes, dtypes, 2));
    EXPECT(w[0] == 2 && seen == 2);
    size_t count, params[2];
    CHECK(bucketeer_reducer_bucket_count(reducer, &count));
    EXPECT(count == 1);
    BucketeerBucket bucket = {.size = sizeof bucket};
    CHECK(bucketeer_reducer_bucket(reducer, 0, &bucket, params, 2));
    EXPECT(bucket.params == 2 && bucket.bytes == 24 && params[0] + params[1] == 1);
    CHECK(bucketeer_reducer_free(reducer));
}

static void *train(void *handle) {
    BucketeerRank *rank = handle;
    uint32_t number, size;
    CHECK(bucketeer_rank_number(rank, &number));
    CHECK(bucketeer_rank_world_size(rank, &size));
    EXPECT(size == RANKS);
    float mine = (float)(number + 1);
    start(rank, mine);
    marks(rank, mine);
    second_mark(rank, mine);
    slots(rank, mine);
    weights(rank, mine);
    unused(rank, mine);
    bulk(rank, mine);
    CHECK(bucketeer_rank_close(rank));
    return NULL;
}

int main(void) {
    EXPECT(bucketeer_abi_version() == BUCKETEER_ABI_VERSION);
    // [README
    BucketeerRank *ranks[RANKS];
    pthread_t threads[RANKS];
    CHECK(bucketeer_rank_local(RANKS, 0, ranks));
    for (int rank = 0; rank < RANKS; rank++) {
        EXPECT(pthread_create(&threads[rank], NULL, train, ranks[rank]) == 0);
    }
    // README]
    for (int rank = 0; rank < RANKS; rank++) {
        EXPECT(pthread_join(threads[rank], NULL) == 0);
    }
    printf("%d ranks of bucketeer %s agree\n", RANKS, bucketeer_version());
    return 0;
}
