//! Gradients on their way in, and out.

#![expect(unsafe_code, reason = "names of C are global; pointers of C are read in `raw`")]
#![expect(clippy::missing_safety_doc, reason = "the crate's docs say for all functions what pointers have to be")]

use crate::raw;
use crate::reducer::BucketeerReducer;
use crate::state::Shared;
use crate::status::{BucketeerStatus, Failure, call};
use crate::table;
use bucketeer_reducer::Param;
use std::ffi::c_void;
use std::ptr;

/// A parameter's gradient is final: takes a copy of its `bytes` bytes, and launches what that completes. Elements come in the
/// parameter's own order of memory (row-major, if that has holes). In a local step, it is added to what is kept. From any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_ready(
    reducer: *mut BucketeerReducer,
    param: usize,
    gradient: *const c_void,
    bytes: usize,
) -> BucketeerStatus {
    call(|| {
        let shared = table::get::<Shared>(reducer)?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let gradient = unsafe { raw::list(gradient.cast::<u8>(), bytes, "gradient") }?;
        shared.mark(|marker| marker.ready(param, gradient), |step| Ok(step.ready(param, gradient)?))
    })
}

/// The same for a gradient of other strides, in elements, one for each of `dims` dimensions; `bytes` reach from its first element to
/// behind its last one. Not in a local step. From any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_ready_strided(
    reducer: *mut BucketeerReducer,
    param: usize,
    gradient: *const c_void,
    bytes: usize,
    strides: *const u64,
    dims: usize,
) -> BucketeerStatus {
    call(|| {
        let shared = table::get::<Shared>(reducer)?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let (gradient, strides) =
            unsafe { (raw::list(gradient.cast::<u8>(), bytes, "gradient")?, raw::list(strides, dims, "strides")?) };
        shared.mark(
            |marker| marker.ready_strided(param, gradient, strides),
            |_| Err(Failure::state("a local step takes gradients in the parameter's own order: use ready")),
        )
    })
}

/// The same for a sparse parameter: `count` rows of the first dimension, in any order, also more than once, and the values of each,
/// end to end. From any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_ready_sparse(
    reducer: *mut BucketeerReducer,
    param: usize,
    rows: *const u64,
    count: usize,
    values: *const c_void,
    bytes: usize,
) -> BucketeerStatus {
    call(|| {
        let shared = table::get::<Shared>(reducer)?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let (rows, values) =
            unsafe { (raw::list(rows, count, "rows")?, raw::list(values.cast::<u8>(), bytes, "values")?) };
        shared
            .mark(|marker| marker.ready_sparse(param, rows, values), |step| Ok(step.ready_sparse(param, rows, values)?))
    })
}

/// The same for a gradient that was written to the parameter's slot, which is unlocked again. From any thread.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_ready_in_place(reducer: *mut BucketeerReducer, param: usize) -> BucketeerStatus {
    call(|| {
        let shared = table::get::<Shared>(reducer)?;
        shared.check_unlocked(param)?;
        shared.mark(|marker| marker.ready_in_place(param), |step| Ok(step.ready_in_place(param)?))
    })
}

/// No gradient comes for a parameter in this step, where options allow it. Not needed, but it has buckets launched earlier. Not
/// in a local step. From any thread.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_unused(reducer: *mut BucketeerReducer, param: usize) -> BucketeerStatus {
    call(|| {
        table::get::<Shared>(reducer)?.mark(
            |marker| marker.unused(param),
            |_| Err(Failure::state("a local step is not told what is unused: leave the parameter out")),
        )
    })
}

/// Locks the slot of a parameter, where its gradient lies in its bucket, and tells where that is and how many bytes it has: in the
/// parameter's own order of elements, none for a sparse one, and in another dtype if the options set a wire. The bytes may be
/// written and read until bucketeer_reducer_unlock, and not behind it. What they hold stays from step to step, also where
/// buckets are made again. Not while results can be read, nor while the bucket is on its way. From any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_slot_lock(
    reducer: *mut BucketeerReducer,
    param: usize,
    slot: *mut *mut c_void,
    bytes: *mut usize,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(slot, "slot")?;
        raw::check_out(bytes, "bytes")?;
        let (place, len) = table::get::<Shared>(reducer)?.lock_slot(param)?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe {
            raw::give(place.cast(), (slot, "slot"))?;
            raw::give(len, (bytes, "bytes"))
        }
    })
}

/// Ends a lock of bucketeer_reducer_slot_lock or bucketeer_reducer_result_lock: the pointer is no longer good. A step is not begun,
/// finished or given up while memory is locked. From any thread.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_reducer_unlock(reducer: *mut BucketeerReducer, param: usize) -> BucketeerStatus {
    call(|| table::get::<Shared>(reducer)?.unlock(param))
}

/// Reduces gradients that are all there after backward, in place: a step of its own. `gradients[i]` has `bytes[i]` bytes, in the
/// order of the parameters, of which there are `count`; null for those that this step did not use. Gradients share no memory.
/// Results can be read as after a step; what is kept is left alone in `gradients`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_reduce_all(
    reducer: *mut BucketeerReducer,
    gradients: *const *mut c_void,
    bytes: *const usize,
    count: usize,
) -> BucketeerStatus {
    // SAFETY: the caller's pointers are as the crate's docs ask for.
    call(|| unsafe { reduce_all(reducer, gradients, bytes, count, None) })
}

/// The same for a mean over samples, of which this rank had `samples`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_reduce_all_weighted(
    reducer: *mut BucketeerReducer,
    gradients: *const *mut c_void,
    bytes: *const usize,
    count: usize,
    samples: f64,
) -> BucketeerStatus {
    // SAFETY: the caller's pointers are as the crate's docs ask for.
    call(|| unsafe { reduce_all(reducer, gradients, bytes, count, Some(samples)) })
}

/// # Safety
/// Pointers are as the crate's docs ask for.
unsafe fn reduce_all(
    reducer: *mut BucketeerReducer,
    gradients: *const *mut c_void,
    bytes: *const usize,
    count: usize,
    samples: Option<f64>,
) -> Result<(), Failure> {
    let shared = table::get::<Shared>(reducer)?;
    // SAFETY: promised by the caller.
    let mut gradients = unsafe {
        let gradients = raw::list(gradients.cast::<*mut u8>(), count, "gradients")?;
        raw::apart(gradients, raw::list(bytes, count, "bytes")?, "gradients")?
    };
    let call = if samples.is_some() { "bucketeer_reducer_reduce_all_weighted" } else { "bucketeer_reducer_reduce_all" };
    shared.bulk(call, |reducer| {
        check_all(reducer.params(), &gradients)?;
        let reduced = match samples {
            None => reducer.reduce_all(&mut gradients),
            Some(samples) => reducer.reduce_all_weighted(&mut gradients, samples),
        };
        Ok(reduced?)
    })
}

/// What would be refused when the step runs, and so end it on all ranks.
fn check_all(params: &[Param], gradients: &[Option<&mut [u8]>]) -> Result<(), Failure> {
    if params.len() != gradients.len() {
        let (found, wanted) = (gradients.len(), params.len());
        return Err(Failure::argument(format!("there are {found} gradients for {wanted} parameters")));
    }
    for (index, (param, gradient)) in params.iter().zip(gradients).enumerate() {
        let Some(gradient) = gradient else { continue };
        let what = format!("the gradient of parameter {index} ({})", param.name());
        if param.is_sparse() {
            return Err(Failure::argument(format!("{what} is rows and values, which are marked and not given here")));
        }
        if gradient.len() as u64 != param.bytes() {
            let found = gradient.len();
            return Err(Failure::argument(format!("{what} has {} bytes, and {found} are given", param.bytes())));
        }
    }
    Ok(())
}

/// Copies a parameter's reduced gradient to `target`, which has `bytes` bytes: in the parameter's own dtype and order. Writes 1
/// to `kept` if its gradient is to stay as it was, as no rank used it or this one keeps its own, and leaves `target` alone; else
/// 0. `kept` may be null. After a step is finished, until the next one begins. From any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_copy_out(
    reducer: *mut BucketeerReducer,
    param: usize,
    target: *mut c_void,
    bytes: usize,
    kept: *mut i32,
) -> BucketeerStatus {
    call(|| {
        let shared = table::get::<Shared>(reducer)?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let target = unsafe { raw::bytes_mut(target.cast(), bytes, "target") }?;
        let copied = shared.results(|reduced| Ok(reduced.copy_to(param, target)?))?;
        // SAFETY: as above.
        unsafe { raw::give_if_wanted(i32::from(!copied), (kept, "kept")) }
    })
}

/// Locks a parameter's reduced gradient to be read where it lies, and tells where that is and how many bytes it has: good until
/// bucketeer_reducer_unlock. If the parameter's gradient is kept, writes null and 0, and locks nothing. Not for gradients that are
/// sparse, or lie there in another dtype: copy those. After a step is finished. From any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_result_lock(
    reducer: *mut BucketeerReducer,
    param: usize,
    result: *mut *const c_void,
    bytes: *mut usize,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(result, "result")?;
        raw::check_out(bytes, "bytes")?;
        let found = table::get::<Shared>(reducer)?.lock_result(param)?;
        let (place, len) = found.unwrap_or((ptr::null(), 0));
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe {
            raw::give(place.cast(), (result, "result"))?;
            raw::give(len, (bytes, "bytes"))
        }
    })
}

/// Copies a sparse parameter's reduced gradient: the rows that any rank gave, rising, and the values of each, end to end. Writes
/// at most `capacity` of the rows and `value_capacity` bytes of values; how many there are goes to `count` and
/// `value_bytes`. So ask with capacities of 0 and null first, then with memory. Writes 1 to `kept`, unless that is null, if the
/// parameter's gradient is to stay as it was; there are no rows then. After a step is finished. From any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_reducer_copy_out_sparse(
    reducer: *mut BucketeerReducer,
    param: usize,
    rows: *mut u64,
    capacity: usize,
    count: *mut usize,
    values: *mut c_void,
    value_capacity: usize,
    value_bytes: *mut usize,
    kept: *mut i32,
) -> BucketeerStatus {
    call(|| {
        let shared = table::get::<Shared>(reducer)?;
        raw::check_list(values.cast::<u8>(), value_capacity, "values")?;
        shared.results(|reduced| {
            let nothing = bucketeer_reducer::SparseGradient::default();
            let is_kept = reduced.is_kept(param);
            let found = match reduced.sparse(param) {
                Some(found) => found,
                None if is_kept => &nothing,
                None => return Err(Failure::argument(format!("parameter {param} has no sparse gradient"))),
            };
            // SAFETY: the caller's pointers are as the crate's docs ask for.
            unsafe {
                raw::give_list(&found.rows, (rows, "rows"), capacity, (count, "count"))?;
                raw::give_list(&found.values, (values.cast(), "values"), value_capacity, (value_bytes, "value_bytes"))?;
                raw::give_if_wanted(i32::from(is_kept), (kept, "kept"))
            }
        })
    })
}
