//! Gradients in 16 bits.

use super::{AllReduce, in_flight, values};
use crate::options::Divide;
use crate::{BucketLayout, Hook, HookBucket, HookError, Stage};
use bucketeer_comm::{Buffer, Group};
use bucketeer_types::DType;
use std::collections::BTreeMap;

const fn words(divide: Divide) -> &'static str {
    match divide {
        Divide::BeforeCast => "divided before the cast",
        Divide::OnWire => "divided in 16 bits",
        Divide::AfterSum => "divided after the sum",
    }
}

/// A bucket cast to f16 or bf16, reduced in 16 bits by an inner hook, and widened: half the bytes of f32.
///
/// ```
/// use bucketeer_reducer::Hook;
/// use bucketeer_reducer::hooks::{Cast16, PowerSgd, PowerSgdOptions};
///
/// assert_eq!(Cast16::bf16().describe(), "bf16, divided before the cast, then all_reduce");
/// let both = Cast16::f16_around(PowerSgd::new(PowerSgdOptions::default())?);
/// assert!(both.describe().starts_with("f16, divided before the cast, then powersgd"));
/// # Ok::<(), bucketeer_reducer::HookError>(())
/// ```
///
/// Buckets of f32 and f64 are cast. A bucket that holds the 16-bit dtype already goes to the inner hook as it is,
/// whatever [`Divide`] says: [`AllReduce`] divides it before the sum. Any other is refused. NaN stays NaN, and what
/// does not fit becomes infinite, element by element, if the inner hook works element by element.
#[derive(Debug)]
pub struct Cast16<H = AllReduce> {
    to: DType,
    divide: Divide,
    inner: H,
    flights: BTreeMap<usize, Narrowed>,
}

/// A bucket in 16 bits.
#[derive(Debug)]
struct Narrowed {
    layout: BucketLayout,
    buffer: Buffer,
}

impl Cast16 {
    /// The mean, in f16.
    #[must_use]
    pub const fn f16() -> Self {
        Self::f16_around(AllReduce)
    }

    /// The mean, in bf16.
    #[must_use]
    pub const fn bf16() -> Self {
        Self::bf16_around(AllReduce)
    }
}

impl<H> Cast16<H> {
    /// Another hook, which is given buckets of f16.
    #[must_use]
    pub const fn f16_around(inner: H) -> Self {
        Self { to: DType::F16, divide: Divide::BeforeCast, inner, flights: BTreeMap::new() }
    }

    /// Another hook, which is given buckets of bf16.
    #[must_use]
    pub const fn bf16_around(inner: H) -> Self {
        Self { to: DType::Bf16, divide: Divide::BeforeCast, inner, flights: BTreeMap::new() }
    }

    /// The same, dividing elsewhere.
    #[must_use]
    pub fn divide(self, divide: Divide) -> Self {
        Self { divide, ..self }
    }

    #[cfg(test)]
    pub(super) const fn inner_mut(&mut self) -> &mut H {
        &mut self.inner
    }

    /// By what the bucket is divided before the cast, and what the inner hook and the way back divide by.
    fn divisors(&self, divisor: f64) -> [f64; 3] {
        match self.divide {
            Divide::BeforeCast => [divisor, 1.0, 1.0],
            Divide::OnWire => [1.0, divisor, 1.0],
            Divide::AfterSum => [1.0, 1.0, divisor],
        }
    }

    /// The result in the bucket's dtype, from a buffer of 16-bit elements.
    fn widen(&mut self, bucket: &HookBucket<'_>, from: Option<Buffer>) -> Result<Stage, HookError> {
        let [.., after] = self.divisors(bucket.divisor());
        let narrowed = in_flight(&mut self.flights, bucket)?;
        let from = from.as_ref().unwrap_or(&narrowed.buffer);
        values::divide_into(self.to, bucket.layout().dtype, &from.read()?, &mut bucket.buffer().write()?, after)?;
        self.flights.remove(&bucket.layout().index);
        Ok(Stage::Done)
    }
}

impl<H: Hook> Cast16<H> {
    /// Asks the inner hook for the stage after `stage`, or the first.
    fn ask(&mut self, bucket: &HookBucket<'_>, stage: Option<usize>) -> Result<Stage, HookError> {
        let [_, divisor, _] = self.divisors(bucket.divisor());
        let Narrowed { layout, buffer } = &*in_flight(&mut self.flights, bucket)?;
        let inner = HookBucket { layout, buffer, divisor, ..*bucket };
        let answer = match stage {
            Some(stage) => self.inner.next(&inner, stage),
            None => self.inner.begin(&inner),
        };
        match answer? {
            Stage::Calls(calls) => Ok(Stage::Calls(calls)),
            Stage::Done => self.widen(bucket, None),
            Stage::DoneIn(buffer) => self.widen(bucket, Some(buffer)),
        }
    }
}

impl<H: Hook> Hook for Cast16<H> {
    fn describe(&self) -> String {
        format!("{}, {}, then {}", self.to.short_name(), words(self.divide), self.inner.describe())
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let (layout, to) = (bucket.layout(), self.to);
        match layout.dtype {
            same if same == to => return self.inner.begin(bucket),
            DType::F32 | DType::F64 => {}
            other => {
                let (to, other) = (to.short_name(), other.short_name());
                return Err(format!("f32 and f64 are cast to {to}, but the bucket holds {other}").into());
            }
        }
        let [before, ..] = self.divisors(bucket.divisor());
        let buffer = bucket.scratch(layout.elements() as u64 * to.bytes())?;
        values::divide_into(layout.dtype, to, &bucket.buffer().read()?, &mut buffer.write()?, before)?;
        let narrowed = Narrowed { layout: BucketLayout { dtype: to, ..layout.clone() }, buffer };
        self.flights.insert(layout.index, narrowed);
        self.ask(bucket, None)
    }

    fn next(&mut self, bucket: &HookBucket<'_>, stage: usize) -> Result<Stage, HookError> {
        if bucket.layout().dtype == self.to {
            return self.inner.next(bucket, stage);
        }
        self.ask(bucket, Some(stage))
    }

    fn rebuilt(&mut self, buckets: &[BucketLayout], group: &Group) {
        self.flights.clear();
        let narrow = |layout: &BucketLayout| BucketLayout { dtype: self.to, ..layout.clone() };
        let buckets: Vec<BucketLayout> = buckets.iter().map(narrow).collect();
        self.inner.rebuilt(&buckets, group);
    }
}
