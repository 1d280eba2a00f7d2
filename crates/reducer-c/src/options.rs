//! Numbers that stand for dtypes and choices, and a reducer's options.

#![expect(unsafe_code, reason = "names of C are global; pointers of C are read in `raw`")]
#![expect(clippy::missing_safety_doc, reason = "the crate's docs say for all functions what pointers have to be")]

use crate::rank::timeout;
use crate::raw;
use crate::status::{BucketeerStatus, Failure, call};
use crate::table::{self, Handled};
use bucketeer_reducer::{Caps, Divide, FirstStep, Rebuild, ReducerOptions, Scale, SmallBucket, Unused, Wire};
use bucketeer_types::DType;
use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a reducer behaves. Made by bucketeer_options_new, read by bucketeer_reducer_new, ended by bucketeer_options_free.
pub struct BucketeerOptions {
    _opaque: [u8; 0],
}

/// The type of an element. Gradients are floats or complex numbers; a broadcast takes all.
#[expect(missing_docs, reason = "a name says what it is")]
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketeerDtype {
    F64 = 0,
    F32 = 1,
    F16 = 2,
    Bf16 = 3,
    F8E4m3fn = 4,
    F8E5m2 = 5,
    F8E4m3fnuz = 6,
    F8E5m2fnuz = 7,
    F8E8m0fnu = 8,
    /// Two elements in a byte.
    F4E2m1fnX2 = 9,
    C32 = 10,
    C64 = 11,
    C128 = 12,
    I64 = 13,
    I32 = 14,
    I16 = 15,
    I8 = 16,
    U64 = 17,
    U32 = 18,
    U16 = 19,
    U8 = 20,
    Bool = 21,
}

/// By number.
const DTYPES: [(BucketeerDtype, DType); 22] = [
    (BucketeerDtype::F64, DType::F64),
    (BucketeerDtype::F32, DType::F32),
    (BucketeerDtype::F16, DType::F16),
    (BucketeerDtype::Bf16, DType::Bf16),
    (BucketeerDtype::F8E4m3fn, DType::F8E4m3fn),
    (BucketeerDtype::F8E5m2, DType::F8E5m2),
    (BucketeerDtype::F8E4m3fnuz, DType::F8E4m3fnuz),
    (BucketeerDtype::F8E5m2fnuz, DType::F8E5m2fnuz),
    (BucketeerDtype::F8E8m0fnu, DType::F8E8m0fnu),
    (BucketeerDtype::F4E2m1fnX2, DType::F4E2m1fnX2),
    (BucketeerDtype::C32, DType::C32),
    (BucketeerDtype::C64, DType::C64),
    (BucketeerDtype::C128, DType::C128),
    (BucketeerDtype::I64, DType::I64),
    (BucketeerDtype::I32, DType::I32),
    (BucketeerDtype::I16, DType::I16),
    (BucketeerDtype::I8, DType::I8),
    (BucketeerDtype::U64, DType::U64),
    (BucketeerDtype::U32, DType::U32),
    (BucketeerDtype::U16, DType::U16),
    (BucketeerDtype::U8, DType::U8),
    (BucketeerDtype::Bool, DType::Bool),
];

/// How the gradients of all ranks become one.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketeerScale {
    /// The mean over ranks.
    Mean = 0,
    /// The sum.
    Sum = 1,
    /// The mean over samples: steps are begun with bucketeer_reducer_begin_weighted.
    Weighted = 2,
}

/// What becomes of a parameter that this rank did not use in a step.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketeerUnused {
    /// It is an error of the step.
    Refuse = 0,
    /// The rank gives zeros, and gets the average if another rank used it; else its gradient is kept.
    Average = 1,
    /// The same, but a rank that did not use it keeps its own gradient.
    KeepMine = 2,
    /// The same as average, but a bucket of unused parameters alone is not sent. Ranks have to agree on what is unused.
    Skip = 3,
}

/// When buckets are made again, by the order in which gradients became ready.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketeerRebuild {
    /// Once, after the first step, or the second one of a static graph; never where unused parameters are allowed.
    Auto = 0,
    /// Once, also where unused parameters are allowed.
    Once = 1,
    /// Never.
    Never = 2,
}

/// What is launched in steps before buckets are made again.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketeerFirstStep {
    /// One bucket for each dtype, if buckets are made again later; else buckets.
    OneLaunch = 0,
    /// Buckets, in reverse order of definition.
    Buckets = 1,
}

/// Which bucket has the first cap.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketeerSmallBucket {
    /// The one that is launched first.
    First = 0,
    /// The one that is launched last.
    Last = 1,
}

/// Where a mean is divided, if gradients are sent in another dtype than they have.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketeerDivide {
    /// In the gradient's dtype, before it is rounded to that of the wire.
    BeforeCast = 0,
    /// In the dtype of the wire.
    OnWire = 1,
    /// After the sum, in the gradient's dtype.
    AfterSum = 2,
}

const SCALES: [(BucketeerScale, Scale); 3] = [
    (BucketeerScale::Mean, Scale::Mean),
    (BucketeerScale::Sum, Scale::Sum),
    (BucketeerScale::Weighted, Scale::Weighted),
];
const UNUSED: [(BucketeerUnused, Unused); 4] = [
    (BucketeerUnused::Refuse, Unused::Refuse),
    (BucketeerUnused::Average, Unused::Average),
    (BucketeerUnused::KeepMine, Unused::KeepMine),
    (BucketeerUnused::Skip, Unused::Skip),
];
const REBUILDS: [(BucketeerRebuild, Rebuild); 3] = [
    (BucketeerRebuild::Auto, Rebuild::Auto),
    (BucketeerRebuild::Once, Rebuild::Once),
    (BucketeerRebuild::Never, Rebuild::Never),
];
const FIRST_STEPS: [(BucketeerFirstStep, FirstStep); 2] =
    [(BucketeerFirstStep::OneLaunch, FirstStep::OneLaunch), (BucketeerFirstStep::Buckets, FirstStep::Buckets)];
const SMALL_BUCKETS: [(BucketeerSmallBucket, SmallBucket); 2] =
    [(BucketeerSmallBucket::First, SmallBucket::First), (BucketeerSmallBucket::Last, SmallBucket::Last)];
const DIVIDES: [(BucketeerDivide, Divide); 3] = [
    (BucketeerDivide::BeforeCast, Divide::BeforeCast),
    (BucketeerDivide::OnWire, Divide::OnWire),
    (BucketeerDivide::AfterSum, Divide::AfterSum),
];

/// A number of C's is its place in the table, which a test holds.
fn choice<C: Copy, T: Copy>(table: &[(C, T)], number: i32, what: &str) -> Result<T, Failure> {
    let found = usize::try_from(number).ok().and_then(|number| table.get(number));
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        Failure::argument(format!("{number} does not stand for a {what}; there are 0 to {}", table.len() - 1))
    })
}

/// The dtype of a number.
pub(crate) fn dtype(number: i32) -> Result<DType, Failure> {
    choice(&DTYPES, number, "dtype")
}

/// Options, as they are set so far.
#[derive(Default)]
pub(crate) struct Options(Mutex<ReducerOptions>);

impl Handled for Options {
    type Opaque = BucketeerOptions;
    const NAME: &'static str = "set of options";
}

impl Options {
    fn lock(&self) -> MutexGuard<'_, ReducerOptions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> ReducerOptions {
        self.lock().clone()
    }
}

fn set(
    options: *const BucketeerOptions,
    change: impl FnOnce(&mut ReducerOptions) -> Result<(), Failure>,
) -> BucketeerStatus {
    call(|| change(&mut table::get::<Options>(options)?.lock()))
}

/// Makes options that are the defaults: buckets of 1 MiB, then 25 MiB; the mean over ranks; no unused parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_options_new(options: *mut *mut BucketeerOptions) -> BucketeerStatus {
    call(|| {
        raw::check_out(options, "options")?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give(table::insert(Options::default()), (options, "options")) }
    })
}

/// Frees options; null is nothing. Reducers that were made of them go on.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_free(options: *mut BucketeerOptions) -> BucketeerStatus {
    call(|| if options.is_null() { Ok(()) } else { table::remove::<Options>(options).map(drop) })
}

/// How large buckets may be, in bytes: the one that has the first cap, and all others.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_caps(
    options: *mut BucketeerOptions,
    first_bytes: u64,
    rest_bytes: u64,
) -> BucketeerStatus {
    set(options, |options| {
        options.caps = Caps::Bytes { first: first_bytes, rest: rest_bytes };
        Ok(())
    })
}

/// The same with a cap for each bucket, in bytes; the last repeats. At least one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_options_set_cap_list(
    options: *mut BucketeerOptions,
    caps_bytes: *const u64,
    count: usize,
) -> BucketeerStatus {
    set(options, |options| {
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let caps = unsafe { raw::list(caps_bytes, count, "caps_bytes") }?;
        if caps.is_empty() {
            return Err(Failure::argument("the list of caps is empty; give at least one, in bytes"));
        }
        options.caps = Caps::List(caps.to_vec());
        Ok(())
    })
}

/// How gradients become one: a number of BucketeerScale.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_scale(options: *mut BucketeerOptions, scale: i32) -> BucketeerStatus {
    set(options, |options| choice(&SCALES, scale, "scale").map(|scale| options.scale = scale))
}

/// What becomes of unused parameters: a number of BucketeerUnused.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_unused(options: *mut BucketeerOptions, unused: i32) -> BucketeerStatus {
    set(options, |options| choice(&UNUSED, unused, "rule for unused parameters").map(|unused| options.unused = unused))
}

/// Whether every step marks the same parameters equally often, on this rank: 0 or 1.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_static_graph(
    options: *mut BucketeerOptions,
    static_graph: i32,
) -> BucketeerStatus {
    set(options, |options| yes_or_no(static_graph, "static_graph").map(|is| options.static_graph = is))
}

/// When buckets are made again: a number of BucketeerRebuild.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_rebuild(options: *mut BucketeerOptions, rebuild: i32) -> BucketeerStatus {
    set(options, |options| choice(&REBUILDS, rebuild, "rule for rebuilds").map(|rebuild| options.rebuild = rebuild))
}

/// What is launched before: a number of BucketeerFirstStep.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_first_step(options: *mut BucketeerOptions, first_step: i32) -> BucketeerStatus {
    set(options, |options| choice(&FIRST_STEPS, first_step, "first step").map(|first| options.first_step = first))
}

/// Which bucket has the first cap: a number of BucketeerSmallBucket.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_small_bucket(
    options: *mut BucketeerOptions,
    small_bucket: i32,
) -> BucketeerStatus {
    set(options, |options| {
        choice(&SMALL_BUCKETS, small_bucket, "small bucket").map(|small| options.small_bucket = small)
    })
}

/// Sends gradients in another dtype, a float of BucketeerDtype, and divides a mean where a number of BucketeerDivide says.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_wire(
    options: *mut BucketeerOptions,
    dtype: i32,
    divide: i32,
) -> BucketeerStatus {
    set(options, |options| {
        options.wire = Some(Wire { dtype: self::dtype(dtype)?, divide: choice(&DIVIDES, divide, "division")? });
        Ok(())
    })
}

/// Sends gradients in their own dtype, as options do at first.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_clear_wire(options: *mut BucketeerOptions) -> BucketeerStatus {
    set(options, |options| {
        options.wire = None;
        Ok(())
    })
}

/// How long a collective may take, in nanoseconds; 0 stands for the rank's own limit.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_options_set_timeout(options: *mut BucketeerOptions, timeout_ns: u64) -> BucketeerStatus {
    set(options, |options| {
        options.timeout = timeout(timeout_ns);
        Ok(())
    })
}

/// What is done with gradients between ranks, by name. There is `none` so far, the scale as it is set, which null says, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_options_set_hook(
    options: *mut BucketeerOptions,
    hook: *const c_char,
) -> BucketeerStatus {
    set(options, |_| {
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        match if hook.is_null() { "none" } else { unsafe { raw::text(hook, "hook") }? } {
            "none" => Ok(()),
            other => Err(Failure::new(
                BucketeerStatus::Unsupported,
                format!("there is no hook `{other}`; this library has `none`"),
            )),
        }
    })
}

/// A number of C's for yes or no.
pub(crate) fn yes_or_no(number: i32, what: &str) -> Result<bool, Failure> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::argument(format!("`{what}` is {other}; give 0 or 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_header_is_its_place_in_the_table() {
        assert_eq!(DTYPES.len(), DType::ALL.len());
        for (at, (number, dtype)) in DTYPES.iter().enumerate() {
            assert_eq!(*number as usize, at);
            assert_eq!(format!("{number:?}"), format!("{dtype:?}"));
        }
        assert!(SCALES.iter().enumerate().all(|(at, (number, _))| *number as usize == at));
        assert!(UNUSED.iter().enumerate().all(|(at, (number, _))| *number as usize == at));
        assert!(REBUILDS.iter().enumerate().all(|(at, (number, _))| *number as usize == at));
        assert!(FIRST_STEPS.iter().enumerate().all(|(at, (number, _))| *number as usize == at));
        assert!(SMALL_BUCKETS.iter().enumerate().all(|(at, (number, _))| *number as usize == at));
        assert!(DIVIDES.iter().enumerate().all(|(at, (number, _))| *number as usize == at));
        let refused = dtype(-1).unwrap_err();
        assert!(format!("{refused:?}").contains("-1 does not stand for a dtype; there are 0 to 21"), "{refused:?}");
    }
}
