//! Calls that types would stop in Rust, and arguments that they would not let through: an error each, and nothing is changed.

#![expect(
    unsafe_code,
    reason = "functions of C are called; each pointer leads to what this file holds meanwhile, or is null"
)]

use bucketeer_reducer_c as c;
use bucketeer_reducer_c::BucketeerStatus as Status;
use bucketeer_reducer_c::{BucketeerGroup, BucketeerOptions, BucketeerParam, BucketeerRank, BucketeerReducer};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

/// What the last failure says.
fn text() -> String {
    // SAFETY: a text that is good until the next failure of this thread.
    unsafe { CStr::from_ptr(c::bucketeer_last_error()) }.to_str().unwrap().to_owned()
}

#[track_caller]
fn assert_fails(status: Status, wanted: Status, part: &str) {
    let text = text();
    assert_eq!(status, wanted, "{text}");
    assert!(text.contains(part), "{text}");
    assert_eq!(c::bucketeer_last_error_status(), wanted);
}

#[track_caller]
pub fn assert_ok(status: Status) {
    assert_eq!(status, Status::Ok, "{}", text());
}

const SHAPE: [u64; 1] = [2];

pub fn param(name: &'static CStr) -> BucketeerParam {
    BucketeerParam {
        size: size_of::<BucketeerParam>(),
        name: name.as_ptr(),
        shape: SHAPE.as_ptr(),
        strides: null(),
        dims: 1,
        dtype: c::BucketeerDtype::F32 as i32,
        sparse: 0,
    }
}

/// A rank without others, its group, and a reducer of `a` and `b`.
struct Alone {
    rank: *mut BucketeerRank,
    group: *mut BucketeerGroup,
    reducer: *mut BucketeerReducer,
}

fn alone_with(params: &[BucketeerParam], options: *const BucketeerOptions) -> Alone {
    let (mut rank, mut group, mut reducer) = (null_mut(), null_mut(), null_mut());
    // SAFETY: see the head of this file.
    unsafe {
        assert_ok(c::bucketeer_rank_fake(0, 1, &mut rank));
        assert_ok(c::bucketeer_group_world(rank, c"world".as_ptr(), &mut group));
        assert_ok(c::bucketeer_reducer_new(rank, group, params.as_ptr(), params.len(), options, &mut reducer));
    }
    Alone { rank, group, reducer }
}

fn alone() -> Alone {
    alone_with(&[param(c"a"), param(c"b")], null())
}

impl Alone {
    fn begin(&self) -> Status {
        // SAFETY: see the head of this file.
        unsafe { c::bucketeer_reducer_begin(self.reducer, null_mut()) }
    }

    fn ready(&self, param: usize) -> Status {
        let gradient = [1f32, 2.0];
        // SAFETY: see the head of this file.
        unsafe { c::bucketeer_reducer_ready(self.reducer, param, gradient.as_ptr().cast(), 8) }
    }

    fn copy_out(&self, param: usize, bytes: usize) -> Status {
        let mut target = [0f32; 2];
        // SAFETY: see the head of this file; `bytes` are at most those of the target.
        unsafe { c::bucketeer_reducer_copy_out(self.reducer, param, target.as_mut_ptr().cast(), bytes, null_mut()) }
    }

    fn finish(&self) -> Status {
        c::bucketeer_reducer_finish(self.reducer)
    }

    fn free(self) {
        assert_ok(c::bucketeer_reducer_free(self.reducer));
        assert_ok(c::bucketeer_group_free(self.group));
        assert_ok(c::bucketeer_rank_close(self.rank));
    }
}

#[test]
fn one_step_runs_at_a_time() {
    let alone = alone();
    assert_fails(alone.finish(), Status::State, "no step runs");
    assert_fails(alone.ready(0), Status::State, "no step runs: begin one first");
    assert_ok(alone.begin());
    assert_fails(alone.begin(), Status::State, "a step runs: finish it or give it up before `bucketeer_reducer_begin`");
    assert_fails(c::bucketeer_reducer_begin_local(alone.reducer), Status::State, "a step runs");
    assert_fails(c::bucketeer_reducer_free(alone.reducer), Status::State, "a step runs");
    assert_fails(c::bucketeer_reducer_change_group(alone.reducer, alone.group), Status::State, "a step runs");
    assert_fails(alone.copy_out(0, 8), Status::State, "there are no results to read");
    assert_ok(c::bucketeer_reducer_give_up(alone.reducer));
    assert_fails(c::bucketeer_reducer_give_up(alone.reducer), Status::State, "no step runs");
    assert_ok(c::bucketeer_reducer_begin_local(alone.reducer));
    assert_fails(alone.begin(), Status::State, "a local step runs");
    assert_fails(c::bucketeer_reducer_unused(alone.reducer, 0), Status::State, "a local step is not told");
    assert_ok(alone.finish());
    alone.free();
}

#[test]
fn a_mark_on_a_finished_step_is_refused_and_results_stay() {
    let alone = alone();
    assert_ok(alone.begin());
    assert_fails(alone.ready(2), Status::Mark, "there are 2 parameters, from 0");
    assert_ok(alone.ready(1));
    assert_ok(alone.ready(0));
    assert_ok(alone.finish());
    assert_fails(alone.ready(0), Status::Mark, "the step is over");
    assert_fails(alone.copy_out(0, 4), Status::Invalid, "has 8 bytes, its target 4");
    assert_fails(alone.copy_out(7, 8), Status::Invalid, "there is no parameter 7");
    assert_ok(alone.copy_out(0, 8));
    let mut count = 0;
    // SAFETY: see the head of this file.
    assert_ok(unsafe { c::bucketeer_reducer_bucket_count(alone.reducer, &mut count) });
    assert_eq!(count, 1);
    // To ask ends nothing; another step does.
    assert_ok(alone.copy_out(0, 8));
    assert_ok(alone.begin());
    assert_fails(alone.copy_out(0, 8), Status::State, "there are no results to read");
    assert_ok(c::bucketeer_reducer_give_up(alone.reducer));
    alone.free();
}

#[test]
fn a_step_that_is_given_up_after_marks_breaks_the_reducer_until_its_group_changes() {
    let alone = alone();
    assert_ok(alone.begin());
    assert_ok(alone.ready(1));
    assert_ok(c::bucketeer_reducer_give_up(alone.reducer));
    assert_fails(alone.begin(), Status::Broken, "given up before it was finished");
    let mut next = null_mut();
    // SAFETY: see the head of this file.
    unsafe {
        assert_ok(c::bucketeer_group_new(alone.rank, c"next".as_ptr(), [0].as_ptr(), 1, &mut next));
    }
    assert_ok(c::bucketeer_reducer_change_group(alone.reducer, next));
    assert_ok(c::bucketeer_group_free(next));
    assert_ok(alone.begin());
    assert_ok(alone.ready(0));
    assert_fails(alone.finish(), Status::Missing, "no gradient came for parameter 1 (b)");
    assert_fails(alone.begin(), Status::Broken, "the reducer is broken since an earlier step");
    alone.free();
}

#[test]
fn handles_that_are_freed_or_of_another_type_are_errors() {
    let Alone { rank, group, reducer } = alone();
    assert_fails(c::bucketeer_rank_close(rank), Status::State, "free its reducers");
    assert_ok(c::bucketeer_reducer_free(reducer));
    assert_fails(c::bucketeer_reducer_free(reducer), Status::Handle, "is not that of a reducer: it is freed");
    assert_fails(c::bucketeer_reducer_finish(reducer), Status::Handle, "is not that of a reducer");
    assert_fails(c::bucketeer_reducer_finish(rank.cast()), Status::Handle, "or of another kind");
    assert_fails(c::bucketeer_reducer_finish(null_mut()), Status::Handle, "the handle of a reducer is null");
    assert_ok(c::bucketeer_reducer_free(null_mut()));
    assert_ok(c::bucketeer_rank_free(rank));
    assert_fails(c::bucketeer_rank_close(rank), Status::Handle, "is not that of a rank");
    assert_ok(c::bucketeer_group_free(group));
}

#[test]
fn pointers_lengths_and_numbers_are_checked() {
    let alone = alone();
    let mut made = null_mut();
    let mut new = |params: &[BucketeerParam]| {
        // SAFETY: see the head of this file.
        unsafe { c::bucketeer_reducer_new(alone.rank, alone.group, params.as_ptr(), params.len(), null(), &mut made) }
    };
    assert_fails(new(&[]), Status::Invalid, "no parameter is to be trained");
    assert_fails(new(&[BucketeerParam { name: null(), ..param(c"a") }]), Status::Argument, "`params[0].name` is null");
    let bad = c"\xff";
    assert_fails(new(&[param(c"a"), param(bad)]), Status::Argument, "`params[1].name` is not UTF-8");
    assert_fails(new(&[BucketeerParam { shape: null(), ..param(c"a") }]), Status::Argument, "shape` is null");
    assert_fails(
        new(&[BucketeerParam { dtype: 99, ..param(c"a") }]),
        Status::Argument,
        "99 does not stand for a dtype",
    );
    assert_fails(new(&[BucketeerParam { dtype: 13, ..param(c"a") }]), Status::Invalid, "gradients of int64");
    assert_fails(new(&[BucketeerParam { sparse: 2, ..param(c"a") }]), Status::Argument, "sparse` is 2; give 0 or 1");
    assert_fails(new(&[BucketeerParam { size: 8, ..param(c"a") }]), Status::Argument, "has a size of 8 bytes");
    let odd = BucketeerParam { dims: usize::MAX, ..param(c"a") };
    assert_fails(new(&[odd]), Status::Argument, "which no memory holds");
    // SAFETY: see the head of this file.
    unsafe {
        let null_list = c::bucketeer_reducer_new(alone.rank, alone.group, null(), 2, null(), &mut made);
        assert_fails(null_list, Status::Argument, "`params` is null");
        let none = c::bucketeer_reducer_new(alone.rank, alone.group, &param(c"a"), 1, null(), null_mut());
        assert_fails(none, Status::Argument, "`reducer` is null");
        let odd = std::ptr::without_provenance(3);
        let moved = c::bucketeer_group_new(alone.rank, c"g".as_ptr(), odd, 1, null_mut());
        assert_fails(moved, Status::Argument, "`group` is null");
        let mut group = null_mut();
        let moved = c::bucketeer_group_new(alone.rank, c"g".as_ptr(), odd, 1, &mut group);
        assert_fails(moved, Status::Argument, "`members` is not aligned to 4 bytes");
        assert_ok(alone.begin());
        let gradient = c::bucketeer_reducer_ready(alone.reducer, 0, null(), 8);
        assert_fails(gradient, Status::Argument, "`gradient` is null");
    }
    assert_ok(c::bucketeer_reducer_give_up(alone.reducer));
    assert_fails(
        c::bucketeer_options_set_scale(null_mut(), 0),
        Status::Handle,
        "the handle of a set of options is null",
    );
    alone.free();
}

#[test]
fn a_larger_struct_may_say_nothing_that_is_not_known() {
    #[repr(C)]
    struct Larger {
        known: BucketeerParam,
        more: u64,
    }

    let alone = alone();
    for (more, status) in [(0, Status::Ok), (1, Status::Argument)] {
        let larger = |name| Larger { known: BucketeerParam { size: size_of::<Larger>(), ..param(name) }, more };
        let params = [larger(c"a"), larger(c"b")];
        assert_eq!(params[0].more, more);
        let (mut group, mut reducer) = (null_mut(), null_mut());
        // SAFETY: see the head of this file; the structs say how long they are.
        let made = unsafe {
            assert_ok(c::bucketeer_group_new(
                alone.rank,
                [c"0", c"1"][more as usize].as_ptr(),
                [0].as_ptr(),
                1,
                &mut group,
            ));
            c::bucketeer_reducer_new(alone.rank, group, params.as_ptr().cast(), 2, null(), &mut reducer)
        };
        assert_eq!(made, status);
        assert_ok(c::bucketeer_group_free(group));
        assert_ok(c::bucketeer_reducer_free(reducer));
    }
    assert!(text().contains("entry 0 of `params` has fields that this library does not know"), "{}", text());
    alone.free();
}

#[test]
fn options_take_every_number_that_the_header_names_and_no_other() {
    let mut options = null_mut();
    // SAFETY: see the head of this file.
    unsafe { assert_ok(c::bucketeer_options_new(&mut options)) };
    for (set, count) in [
        (c::bucketeer_options_set_scale as extern "C" fn(_, i32) -> _, 3),
        (c::bucketeer_options_set_unused, 4),
        (c::bucketeer_options_set_static_graph, 2),
        (c::bucketeer_options_set_rebuild, 3),
        (c::bucketeer_options_set_first_step, 2),
        (c::bucketeer_options_set_small_bucket, 2),
    ] {
        (0..count).for_each(|number| assert_ok(set(options, number)));
        assert_eq!(set(options, count), Status::Argument);
        assert_eq!(set(options, -1), Status::Argument);
    }
    assert_fails(c::bucketeer_options_set_wire(options, 3, 3), Status::Argument, "3 does not stand for a division");
    assert_ok(c::bucketeer_options_set_wire(options, 3, 2));
    assert_ok(c::bucketeer_options_clear_wire(options));
    assert_ok(c::bucketeer_options_set_caps(options, 1, 2));
    assert_ok(c::bucketeer_options_set_timeout(options, 1));
    // SAFETY: see the head of this file.
    unsafe {
        assert_fails(
            c::bucketeer_options_set_cap_list(options, null(), 0),
            Status::Argument,
            "the list of caps is empty",
        );
        assert_ok(c::bucketeer_options_set_cap_list(options, [1, 2].as_ptr(), 2));
        assert_ok(c::bucketeer_options_set_hook(options, null()));
        let hook = c::bucketeer_options_set_hook(options, c"sign".as_ptr());
        assert_fails(hook, Status::Unsupported, "there is no hook `sign`");
    }
    assert_ok(c::bucketeer_options_free(options));
    assert_fails(c::bucketeer_options_clear_wire(options), Status::Handle, "is not that of a set of options");
}

#[test]
fn sparse_gradients_are_told_how_long_they_are_before_they_are_copied() {
    let shape = [5u64, 2];
    let sparse = BucketeerParam { shape: shape.as_ptr(), dims: 2, sparse: 1, ..param(c"table") };
    let alone = alone_with(&[sparse], null());
    assert_ok(alone.begin());
    let (rows, values) = ([3u64, 1], [1f32, 2.0, 3.0, 4.0]);
    let (mut found_rows, mut found_values, mut counts) = ([0u64; 2], [0f32; 4], (0, 0));
    let reducer = alone.reducer;
    // SAFETY: see the head of this file.
    unsafe {
        let outside = c::bucketeer_reducer_ready_sparse(reducer, 0, [5].as_ptr(), 1, values.as_ptr().cast(), 8);
        assert_fails(outside, Status::Mark, "it has row 5, the parameter 5 rows");
        assert_ok(c::bucketeer_reducer_ready_sparse(reducer, 0, rows.as_ptr(), 2, values.as_ptr().cast(), 16));
        assert_ok(alone.finish());
        let (count, bytes): (*mut usize, *mut usize) = (&mut counts.0, &mut counts.1);
        let copy = |rows, capacity, values, bytes_capacity| {
            c::bucketeer_reducer_copy_out_sparse(
                reducer,
                0,
                rows,
                capacity,
                count,
                values,
                bytes_capacity,
                bytes,
                null_mut(),
            )
        };
        assert_ok(copy(null_mut(), 0, null_mut(), 0));
        assert_ok(copy(found_rows.as_mut_ptr(), 2, found_values.as_mut_ptr().cast(), 16));
    }
    assert_eq!((counts, found_rows, found_values), ((2, 16), [1, 3], [3.0, 4.0, 1.0, 2.0]));
    alone.free();
}

#[test]
fn gradients_in_bulk_are_checked_before_the_step_begins() {
    let alone = alone();
    let (mut a, mut b) = ([1f32, 2.0], [3f32, 4.0]);
    let pointers = [a.as_mut_ptr().cast(), b.as_mut_ptr().cast()];
    let reduce = |bytes: &[usize]| {
        // SAFETY: see the head of this file; `bytes` are at most those of the gradients.
        unsafe { c::bucketeer_reducer_reduce_all(alone.reducer, pointers.as_ptr(), bytes.as_ptr(), bytes.len()) }
    };
    assert_fails(reduce(&[8, 4]), Status::Argument, "the gradient of parameter 1 (b) has 8 bytes, and 4 are given");
    assert_fails(reduce(&[8]), Status::Argument, "there are 1 gradients for 2 parameters");
    assert_ok(reduce(&[8, 8]));
    assert_fails(alone.ready(0), Status::State, "no step runs");
    assert_ok(alone.copy_out(1, 8));
    let mut slot = null_mut();
    let mut bytes = 0;
    // SAFETY: see the head of this file.
    unsafe {
        let locked = c::bucketeer_reducer_slot_lock(alone.reducer, 0, &mut slot, &mut bytes);
        assert_fails(locked, Status::State, "the slots hold results");
        assert_ok(alone.begin());
        assert_ok(c::bucketeer_reducer_slot_lock(alone.reducer, 0, &mut slot, &mut bytes));
        let twice = c::bucketeer_reducer_slot_lock(alone.reducer, 0, &mut slot, &mut bytes);
        assert_fails(twice, Status::State, "memory of parameter 0 is locked already");
    }
    let gave_up = c::bucketeer_reducer_give_up(alone.reducer);
    assert_fails(gave_up, Status::State, "unlock it before `bucketeer_reducer_give_up`");
    assert_ok(c::bucketeer_reducer_unlock(alone.reducer, 0));
    assert_fails(c::bucketeer_reducer_unlock(alone.reducer, 0), Status::State, "is not locked");
    assert_ok(c::bucketeer_reducer_give_up(alone.reducer));
    alone.free();
}

#[test]
fn ranks_that_cannot_be_opened_say_why() {
    let mut rank = null_mut();
    // SAFETY: see the head of this file.
    unsafe {
        assert_fails(c::bucketeer_rank_fake(2, 2, &mut rank), Status::Invalid, "there is no rank 2 among 2 ranks");
        assert_fails(c::bucketeer_rank_local(0, 0, &mut rank), Status::Invalid, "0 ranks are asked for");
        if cfg!(not(feature = "mpi")) {
            assert_fails(c::bucketeer_rank_mpi(0, &mut rank), Status::Unsupported, "without the feature `mpi`");
        }
    }
}

#[test]
fn a_group_goes_on_without_the_ranks_that_an_error_names() {
    let mut ranks = [null_mut(); 3];
    // SAFETY: see the head of this file.
    unsafe { assert_ok(c::bucketeer_rank_local(3, 0, ranks.as_mut_ptr())) };
    let work = |rank: usize, number: usize| {
        let rank = std::ptr::without_provenance_mut(rank);
        let (mut group, mut reducer, mut smaller) = (null_mut(), null_mut(), null_mut());
        // SAFETY: see the head of this file.
        unsafe {
            assert_ok(c::bucketeer_group_world(rank, c"world".as_ptr(), &mut group));
            let params = [param(c"a")];
            assert_ok(c::bucketeer_reducer_new(rank, group, params.as_ptr(), 1, null(), &mut reducer));
            if number == 2 {
                assert_ok(c::bucketeer_reducer_free(reducer));
                assert_ok(c::bucketeer_rank_free(rank));
                return 0.0;
            }
            let alone = Alone { rank, group, reducer };
            assert_ok(alone.begin());
            let marked = alone.ready(0);
            let failed = if marked == Status::Ok { alone.finish() } else { marked };
            assert_fails(failed, Status::Comm, "rank 2");
            let (mut culprits, mut count) = ([0], 0);
            assert_ok(c::bucketeer_last_error_culprits(culprits.as_mut_ptr(), 1, &mut count));
            assert_eq!((culprits, count), ([2], 1));
            if marked != Status::Ok {
                assert_ok(c::bucketeer_reducer_give_up(reducer));
            }
            assert_ok(c::bucketeer_group_shrink(rank, group, culprits.as_ptr(), 1, &mut smaller));
            assert_ok(c::bucketeer_reducer_change_group(reducer, smaller));
            assert_ok(c::bucketeer_group_free(smaller));
            assert_ok(alone.begin());
            assert_ok(alone.ready(0));
            assert_ok(alone.finish());
            let mut target = [0f32; 2];
            assert_ok(c::bucketeer_reducer_copy_out(reducer, 0, target.as_mut_ptr().cast(), 8, null_mut()));
            alone.free();
            target[1]
        }
    };
    let results: Vec<f32> = std::thread::scope(|scope| {
        let start = |(number, rank): (usize, &*mut BucketeerRank)| {
            let rank = rank.addr();
            scope.spawn(move || work(rank, number))
        };
        let threads: Vec<_> = ranks.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(results, [2.0, 2.0, 0.0]);
}

#[test]
fn marks_and_misuse_from_many_threads_leave_a_step_whole() {
    const PARAMS: usize = 64;
    let params = [param(c"p"); PARAMS];
    let alone = alone_with(&params, null());
    let reducer = alone.reducer.addr();
    for _ in 0..20 {
        assert_ok(alone.begin());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let reducer = std::ptr::without_provenance_mut(reducer);
                    let gradient = [1f32, 2.0];
                    for param in (thread..PARAMS).step_by(4) {
                        // SAFETY: see the head of this file.
                        unsafe {
                            assert_ok(c::bucketeer_reducer_ready(reducer, param, gradient.as_ptr().cast(), 8));
                        }
                        assert_eq!(c::bucketeer_reducer_free(reducer), Status::State);
                        assert_eq!(c::bucketeer_reducer_begin_local(reducer), Status::State);
                    }
                });
            }
        });
        assert_ok(alone.finish());
        assert_ok(alone.copy_out(PARAMS - 1, 8));
    }
    alone.free();
}
