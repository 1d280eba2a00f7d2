//! Gradients in 8 bits.

use super::{gather, in_flight, values};
use crate::{BucketLayout, Hook, HookBucket, HookError, Stage};
use bucketeer_comm::{Buffer, Group};
use bucketeer_types::DType;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// Elements that are worked on at once.
const CHUNK: usize = 1024;

/// Gradients as unsigned bytes, each rank's on a scale of its own, gathered on all ranks and averaged there.
///
/// A scale spans from the least value to the greatest, 0 included: a value x is the byte round(x / scale) + zero point,
/// which stands for scale · (byte − zero point). So no value is off by more than half of its scale, 1/510 of the range,
/// and 0 is exact. Every rank receives each rank's bytes: of W ranks, W bytes for an element, against about 8 of a sum
/// of f32.
///
/// Scales are calculated in f32, also for buckets of f64. A block with a NaN or an infinite value, or one beyond f32,
/// becomes NaN as a whole, on all ranks: its scale does.
#[derive(Debug)]
pub struct Quantise {
    /// Elements that share a scale; none for all of a bucket.
    block: Option<NonZeroUsize>,
    flights: BTreeMap<usize, Gathered>,
}

/// What all ranks' scales and bytes are gathered in.
#[derive(Debug)]
struct Gathered {
    /// For each rank, for each block: scale and zero point, in f32.
    scales: Buffer,
    /// For each rank, each element.
    bytes: Buffer,
}

/// What a byte stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scale {
    step: f32,
    zero: f32,
}

impl Scale {
    /// For values between their least and greatest, and 0; NaN if one is not finite.
    fn of(values: &[f32]) -> Self {
        if !values.iter().all(|value| value.is_finite()) {
            return Self { step: f32::NAN, zero: f32::NAN };
        }
        let least = values.iter().copied().fold(0.0, f32::min);
        let greatest = values.iter().copied().fold(0.0, f32::max);
        let range = greatest - least;
        // The range of two finite values may be infinite.
        let step = if range.is_finite() { range / 255.0 } else { greatest / 255.0 - least / 255.0 };
        let zero = if step > 0.0 { (-least / step).round_ties_even().clamp(0.0, 255.0) } else { 0.0 };
        Self { step, zero }
    }

    fn byte(self, value: f32) -> u8 {
        // Of a range of nothing, or of NaN: any byte will do, as it is multiplied by that.
        if self.step > 0.0 { ((value / self.step).round_ties_even() + self.zero).clamp(0.0, 255.0) as u8 } else { 0 }
    }

    fn value(self, byte: u8) -> f64 {
        f64::from(self.step) * (f64::from(byte) - f64::from(self.zero))
    }

    fn to_bytes(self) -> [u8; 8] {
        let ([a, b, c, d], [e, f, g, h]) = (self.step.to_le_bytes(), self.zero.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    fn from_bytes([a, b, c, d, e, f, g, h]: [u8; 8]) -> Self {
        Self { step: f32::from_le_bytes([a, b, c, d]), zero: f32::from_le_bytes([e, f, g, h]) }
    }
}

impl Quantise {
    /// One scale for all of a bucket.
    #[must_use]
    pub const fn per_tensor() -> Self {
        Self { block: None, flights: BTreeMap::new() }
    }

    /// A scale for each `elements` elements of a bucket, in order, whatever parameters they belong to; the last block
    /// may be shorter.
    #[must_use]
    pub const fn per_channel(elements: NonZeroUsize) -> Self {
        Self { block: Some(elements), flights: BTreeMap::new() }
    }

    /// Elements that share a scale, in a bucket that is not empty.
    fn block(&self, layout: &BucketLayout) -> usize {
        self.block.map_or(layout.elements(), NonZeroUsize::get)
    }
}

/// Scales and bytes of one rank's bucket.
fn quantise(
    dtype: DType,
    gradients: &[u8],
    block: usize,
    scales: &mut [u8],
    bytes: &mut [u8],
) -> Result<(), HookError> {
    let mut wide = vec![0; gradients.len() / values::width(dtype) * 4];
    values::cast(dtype, DType::F32, gradients, &mut wide)?;
    let wide: Vec<f32> = wide.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let blocks = wide.chunks(block).zip(bytes.chunks_mut(block));
    for ((values, bytes), place) in blocks.zip(scales.as_chunks_mut().0) {
        let scale = Scale::of(values);
        *place = scale.to_bytes();
        bytes.iter_mut().zip(values).for_each(|(byte, value)| *byte = scale.byte(*value));
    }
    Ok(())
}

/// The mean of what all ranks' bytes stand for. `scales` and `bytes` are the ranks' own, end to end.
fn average(bucket: &HookBucket<'_>, block: usize, scales: &[u8], bytes: &[u8]) -> Result<(), HookError> {
    let layout = bucket.layout();
    let (elements, dtype) = (layout.elements(), layout.dtype);
    let blocks = elements.div_ceil(block);
    let scales = scales.as_chunks().0;
    let mut target = bucket.buffer().write()?;
    let mut sums = [0.0; CHUNK];
    for at in 0..blocks {
        let end = at.saturating_add(1).saturating_mul(block).min(elements);
        for first in (at * block..end).step_by(CHUNK) {
            let range = first..end.min(first + CHUNK);
            let sums = &mut sums[..range.len()];
            sums.fill(0.0);
            for (scales, bytes) in scales.chunks(blocks).zip(bytes.chunks(elements)) {
                let scale = Scale::from_bytes(scales[at]);
                sums.iter_mut().zip(&bytes[range.clone()]).for_each(|(sum, byte)| *sum += scale.value(*byte));
            }
            sums.iter_mut().for_each(|sum| *sum /= bucket.divisor());
            values::store(dtype, sums, &mut target[values::bytes_of(&range, dtype)])?;
        }
    }
    Ok(())
}

impl Hook for Quantise {
    fn describe(&self) -> String {
        match self.block {
            Some(elements) => format!("8 bits per {elements} elements"),
            None => "8 bits per bucket".to_owned(),
        }
    }

    /// Both gathers in one stage: a rank knows its own scales without asking others.
    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let layout = bucket.layout();
        values::check_float("quantise", layout.dtype)?;
        let elements = layout.elements();
        if elements == 0 {
            return Ok(Stage::Done);
        }
        let (block, ranks) = (self.block(layout), bucket.group().size() as u64);
        let (scales, bytes) = (elements.div_ceil(block) as u64 * 8, elements as u64);
        let own_scales = bucket.scratch(scales)?;
        let own_bytes = bucket.scratch(bytes)?;
        let gradients = bucket.buffer().read()?;
        quantise(layout.dtype, &gradients, block, &mut own_scales.write()?, &mut own_bytes.write()?)?;
        let gathered = Gathered {
            scales: bucket.scratch(scales.saturating_mul(ranks))?,
            bytes: bucket.scratch(bytes.saturating_mul(ranks))?,
        };
        let calls =
            vec![gather(&own_scales, &gathered.scales, DType::F32), gather(&own_bytes, &gathered.bytes, DType::U8)];
        self.flights.insert(layout.index, gathered);
        Ok(Stage::Calls(calls))
    }

    fn next(&mut self, bucket: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
        let block = self.block(bucket.layout());
        let gathered = in_flight(&mut self.flights, bucket)?;
        average(bucket, block, &gathered.scales.read()?, &gathered.bytes.read()?)?;
        self.flights.remove(&bucket.layout().index);
        Ok(Stage::Done)
    }

    fn rebuilt(&mut self, _: &[BucketLayout], _: &Group) {
        self.flights.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(values: &[f32]) -> Vec<f64> {
        let scale = Scale::of(values);
        values.iter().map(|value| scale.value(scale.byte(*value))).collect()
    }

    #[test]
    fn a_value_is_off_by_half_a_step_at_most_and_zero_is_exact() {
        for values in [&[0.0, 1.0, -2.0, 0.3, 0.7][..], &[5.0, 5.1], &[-1e-30, -3e-30], &[f32::MAX, f32::MIN, 1e38]] {
            let step = f64::from(Scale::of(values).step);
            for (found, value) in round_trip(values).into_iter().zip(values) {
                assert!((found - f64::from(*value)).abs() <= step * 0.51, "{found} for {value} of {values:?}");
            }
        }
        assert_eq!(round_trip(&[0.0, -3.3, 1.9])[0], 0.0);
        assert_eq!(round_trip(&[0.0, -0.0]), [0.0, 0.0]);
    }

    #[test]
    fn a_value_that_is_not_finite_makes_its_block_nan() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(round_trip(&[1.0, value]).iter().all(|value| value.is_nan()));
        }
    }
}
