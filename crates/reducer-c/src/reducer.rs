//! A reducer's life: parameters, group, steps, and what it tells of itself.

#![expect(unsafe_code, reason = "names of C are global; pointers of C are read in `raw`")]
#![expect(clippy::missing_safety_doc, reason = "the crate's docs say for all functions what pointers have to be")]

use crate::options::{BucketeerOptions, Options, dtype, yes_or_no};
use crate::rank::{BucketeerGroup, BucketeerRank, Rank};
use crate::raw::{self, Growing};
use crate::state::Shared;
use crate::status::{BucketeerStatus, Failure, call};
use crate::table;
use bucketeer_comm::Group;
use bucketeer_reducer::{Param, Reducer, ReducerOptions, Tensor};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// One rank's side of data-parallel training. Made by bucketeer_reducer_new, ended by bucketeer_reducer_free.
pub struct BucketeerReducer {
    _opaque: [u8; 0],
}

/// A parameter whose gradient is reduced. Set what you do not use to 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BucketeerParam {
    /// sizeof(BucketeerParam). It may grow in later versions.
    pub size: usize,
    /// Its name, in UTF-8.
    pub name: *const c_char,
    /// Elements by dimension.
    pub shape: *const u64,
    /// Strides by dimension, in elements; null for row-major.
    pub strides: *const u64,
    /// How many dimensions there are; 0 for a scalar.
    pub dims: usize,
    /// A number of BucketeerDtype, of the parameter and its gradient.
    pub dtype: i32,
    /// 1 if its gradient is rows and values: few of the rows of its first dimension. Else 0.
    pub sparse: i32,
}

// SAFETY: `#[repr(C)]`; five words and two fields of four bytes, so no padding, whether words have 4 bytes or 8. The first
// is the size. Pointers and integers have no invalid bytes.
unsafe impl Growing for BucketeerParam {}

/// A bucket, as it is told.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BucketeerBucket {
    /// sizeof(BucketeerBucket), set by the caller. It may grow in later versions.
    pub size: usize,
    /// How many parameters it has.
    pub params: usize,
    /// Bytes of their gradients, in their own dtype.
    pub bytes: u64,
    /// The cap in force when it was closed, in bytes; 0 for a sparse one.
    pub limit_bytes: u64,
}

// SAFETY: `#[repr(C)]`; two words and two of eight bytes: no padding, as two words are 8 or 16 bytes. The first is the size.
unsafe impl Growing for BucketeerBucket {}

/// Stands for a time that there is not.
pub const BUCKETEER_NEVER: u64 = u64::MAX;

/// When what happened in a step on this rank, in nanoseconds since the step began; BUCKETEER_NEVER for what did not happen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BucketeerTimeline {
    /// sizeof(BucketeerTimeline), set by the caller. It may grow in later versions.
    pub size: usize,
    /// How many buckets there were.
    pub buckets: usize,
    /// Number of the step, from 0.
    pub step: u64,
    /// When the first gradient came.
    pub first_mark_ns: u64,
    /// When the last gradient came.
    pub last_mark_ns: u64,
    /// When the first bucket was launched.
    pub first_launch_ns: u64,
    /// When all had come.
    pub finished_ns: u64,
    /// How long messages were on their way while gradients still came.
    pub overlap_ns: u64,
    /// How long the step went on after its last gradient.
    pub exposed_ns: u64,
}

// SAFETY: `#[repr(C)]`; two words and seven of eight bytes: no padding. The first is the size.
unsafe impl Growing for BucketeerTimeline {}

/// Makes a reducer of `count` parameters, in an order that is the same on all ranks of the group, and compares it with the other
/// ranks'. Waits for them. `options` may be null for the defaults. Nothing that is passed is kept: handles may be freed, memory
/// used again. Give it a group of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_new(
    rank: *const BucketeerRank,
    group: *const BucketeerGroup,
    params: *const BucketeerParam,
    count: usize,
    options: *const BucketeerOptions,
    reducer: *mut *mut BucketeerReducer,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(reducer, "reducer")?;
        let (rank, group) = (table::get::<Rank>(rank)?, table::get::<Group>(group)?);
        let options = match options.is_null() {
            true => ReducerOptions::default(),
            false => table::get::<Options>(options)?.get(),
        };
        // SAFETY: the caller's pointers are as the crate's docs ask for, those inside of the structs, too.
        let params = unsafe {
            let params = raw::structs(params, count, "params")?.into_iter().enumerate();
            params.map(|(index, raw)| param(index, raw)).collect::<Result<Vec<_>, _>>()?
        };
        let made = Reducer::new(rank.backend(), &group, params, options)?;
        // SAFETY: as above.
        unsafe { raw::give(table::insert(Shared::new(made)), (reducer, "reducer")) }
    })
}

/// # Safety
/// Name, shape and strides are as the crate's docs ask for.
unsafe fn param(index: usize, param: BucketeerParam) -> Result<Param, Failure> {
    let what = |field: &str| format!("params[{index}].{field}");
    // SAFETY: promised by the caller.
    let (name, shape) =
        unsafe { (raw::text(param.name, &what("name"))?, raw::list(param.shape, param.dims, &what("shape"))?) };
    let mut made = Param::new(name, shape, dtype(param.dtype)?);
    if !param.strides.is_null() {
        // SAFETY: promised by the caller.
        made = made.with_strides(unsafe { raw::list(param.strides, param.dims, &what("strides")) }?);
    }
    Ok(if yes_or_no(param.sparse, &what("sparse"))? { made.sparse() } else { made })
}

/// Frees a reducer; null is nothing. BUCKETEER_STATUS_STATE during a step, or while memory of it is locked: finish the step or give
/// it up, unlock, then free.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_free(reducer: *mut BucketeerReducer) -> BucketeerStatus {
    call(|| {
        if reducer.is_null() {
            return Ok(());
        }
        table::get::<Shared>(reducer)?.end("bucketeer_reducer_free")?;
        table::remove::<Shared>(reducer).map(drop)
    })
}

/// Goes on with another group, after ranks have left or come, or after a failure, which broke the old one: all its ranks call
/// this, and ranks that are new make a reducer on it. Between steps.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_change_group(
    reducer: *mut BucketeerReducer,
    group: *const BucketeerGroup,
) -> BucketeerStatus {
    call(|| {
        let group = table::get::<Group>(group)?;
        let shared = table::get::<Shared>(reducer)?;
        shared.between("bucketeer_reducer_change_group", |reducer| Ok(reducer.change_group(&group)?))
    })
}

/// Gives all ranks the tensors that one of them has, `root`, a place in the group: parameters at the start, or buffers of the model
/// before a forward. All ranks call it with the same tensors: `tensors[i]` has `bytes[i]` bytes of the dtype that `dtypes[i]`, a
/// number of BucketeerDtype, stands for. Tensors share no memory. Between steps, or in one that is reduced, in which other threads that mark or end it
/// may have to wait for this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_broadcast(
    reducer: *mut BucketeerReducer,
    root: usize,
    tensors: *const *mut c_void,
    bytes: *const usize,
    dtypes: *const i32,
    count: usize,
) -> BucketeerStatus {
    call(|| {
        let shared = table::get::<Shared>(reducer)?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let (slices, dtypes) = unsafe {
            let tensors = raw::list(tensors.cast::<*mut u8>(), count, "tensors")?;
            let lengths = raw::list(bytes, count, "bytes")?;
            (raw::apart(tensors, lengths, "tensors")?, raw::list(dtypes, count, "dtypes")?)
        };
        let mut tensors = Vec::with_capacity(count);
        for (at, (slice, number)) in slices.into_iter().zip(dtypes).enumerate() {
            let bytes = slice.ok_or_else(|| Failure::argument(format!("`tensors[{at}]` is null")))?;
            tensors.push(Tensor::new(dtype(*number)?, bytes));
        }
        let tensors = std::cell::RefCell::new(tensors);
        shared.in_step_or_between(
            "bucketeer_reducer_broadcast",
            |step| step.broadcast(root, &mut tensors.borrow_mut()),
            |reducer| reducer.broadcast(root, &mut tensors.borrow_mut()),
        )
    })
}

/// Begins a step whose gradients are reduced, and writes its number, from 0, to `number`, unless that is null. Before the forward, so
/// that all is ready when backward marks gradients. What the last step came to can no longer be read. May wait for other ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_begin(reducer: *mut BucketeerReducer, number: *mut u64) -> BucketeerStatus {
    call(|| {
        let begun = table::get::<Shared>(reducer)?.begin("bucketeer_reducer_begin", Reducer::step)?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give_if_wanted(begun, (number, "number")) }
    })
}

/// The same for a mean over samples, of which this rank had `samples` in this step: 0 or more, and more than 0 on some rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_begin_weighted(
    reducer: *mut BucketeerReducer,
    samples: f64,
    number: *mut u64,
) -> BucketeerStatus {
    call(|| {
        let shared = table::get::<Shared>(reducer)?;
        let begun = shared.begin("bucketeer_reducer_begin_weighted", |reducer| reducer.weighted_step(samples))?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give_if_wanted(begun, (number, "number")) }
    })
}

/// Begins a step whose gradients are kept here and added to those of the next reduced step; nothing is sent. Ended by
/// bucketeer_reducer_finish.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_begin_local(reducer: *mut BucketeerReducer) -> BucketeerStatus {
    call(|| table::get::<Shared>(reducer)?.begin_local("bucketeer_reducer_begin_local"))
}

/// Forgets what local steps kept. Between steps.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_clear_local(reducer: *mut BucketeerReducer) -> BucketeerStatus {
    call(|| {
        table::get::<Shared>(reducer)?.between("bucketeer_reducer_clear_local", |reducer| {
            reducer.clear_local();
            Ok(())
        })
    })
}

/// Ends a step: waits for all buckets, after which results can be read until the next step begins. Marks of other threads come
/// before. A failure breaks the reducer on all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_finish(reducer: *mut BucketeerReducer) -> BucketeerStatus {
    call(|| table::get::<Shared>(reducer)?.finish("bucketeer_reducer_finish"))
}

/// Gives a step up. Harmless if nothing was marked; else it breaks the reducer on all ranks, so that none waits for this one. What
/// a local step was given stays.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_give_up(reducer: *mut BucketeerReducer) -> BucketeerStatus {
    call(|| table::get::<Shared>(reducer)?.give_up("bucketeer_reducer_give_up"))
}

/// Writes how many buckets there are. Between steps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_bucket_count(
    reducer: *mut BucketeerReducer,
    count: *mut usize,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(count, "count")?;
        let shared = table::get::<Shared>(reducer)?;
        let buckets = shared.ask("bucketeer_reducer_bucket_count", |reducer| Ok(reducer.buckets().len()))?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give(buckets, (count, "count")) }
    })
}

/// Describes a bucket, by its place in the order of launches, and writes at most `capacity` indices of its parameters to `params`,
/// which may be null if that is 0, in the order in which they lie. Between steps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_bucket(
    reducer: *mut BucketeerReducer,
    index: usize,
    bucket: *mut BucketeerBucket,
    params: *mut usize,
    capacity: usize,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(bucket, "bucket")?;
        let shared = table::get::<Shared>(reducer)?;
        let buckets = shared.ask("bucketeer_reducer_bucket", |reducer| Ok(reducer.buckets()))?;
        let missing = || Failure::argument(format!("there is no bucket {index}, only {}", buckets.len()));
        let info = buckets.get(index).ok_or_else(missing)?;
        let told = BucketeerBucket {
            size: size_of::<BucketeerBucket>(),
            params: info.params.len(),
            bytes: info.bytes,
            limit_bytes: info.limit_bytes,
        };
        let mut count = 0;
        // SAFETY: the caller's pointers are as the crate's docs ask for; `count` is this function's own.
        unsafe {
            raw::give_list(&info.params, (params, "params"), capacity, (&raw mut count, "count"))?;
            raw::give_struct(told, (bucket, "bucket"))
        }
    })
}

/// Writes the generation of the buckets, which is counted up each time they are made again. Between steps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_generation(
    reducer: *mut BucketeerReducer,
    generation: *mut u64,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(generation, "generation")?;
        let shared = table::get::<Shared>(reducer)?;
        let number = shared.ask("bucketeer_reducer_generation", |reducer| Ok(reducer.generation()))?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give(number, (generation, "generation")) }
    })
}

/// Tells when what happened in the last step that was reduced; BUCKETEER_STATUS_STATE if there was none. Fields that this library does
/// not know are left alone. Between steps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_timeline(
    reducer: *mut BucketeerReducer,
    timeline: *mut BucketeerTimeline,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(timeline, "timeline")?;
        let shared = table::get::<Shared>(reducer)?;
        let told = shared.ask("bucketeer_reducer_timeline", |reducer| {
            reducer.timeline().map(times).ok_or_else(|| Failure::state("no step was reduced so far"))
        })?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give_struct(told, (timeline, "timeline")) }
    })
}

fn times(timeline: &bucketeer_reducer::Timeline) -> BucketeerTimeline {
    // 584 years fit.
    let number = |time: Duration| time.as_nanos() as u64;
    let or_never = |time: Option<Duration>| time.map_or(BUCKETEER_NEVER, number);
    BucketeerTimeline {
        size: size_of::<BucketeerTimeline>(),
        buckets: timeline.buckets.len(),
        step: timeline.step,
        first_mark_ns: or_never(timeline.first_mark()),
        last_mark_ns: or_never(timeline.last_mark()),
        first_launch_ns: or_never(timeline.first_launch()),
        finished_ns: number(timeline.finished),
        overlap_ns: number(timeline.overlap()),
        exposed_ns: number(timeline.exposed()),
    }
}
