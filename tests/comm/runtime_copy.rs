//! Copies of strided, converted elements give what a slow obvious loop gives, and touch nothing else.

use bucketeer::ir::DType;
use bucketeer::program::Layout;
use bucketeer_exec::{CopyError, copy_elements};
use bucketeer_types::{class, num};
use kit::collective::Random;
use proptest::prelude::*;

const DTYPES: [DType; 20] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::F8E4m3fn,
    DType::F8E5m2,
    DType::F8E4m3fnuz,
    DType::F8E5m2fnuz,
    DType::F8E8m0fnu,
    DType::F4E2m1fnX2,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool,
    DType::C64,
];

/// One element after the other, in row-major order; `None` where there is no conversion.
fn slow(source: &[u8], from: &Layout, target: &[u8], to: &Layout) -> Option<Vec<u8>> {
    let mut result = target.to_vec();
    let (width, to_width) = (from.dtype.bytes() as usize, to.dtype.bytes() as usize);
    let elements = from.shape.iter().product::<u64>();
    num::convert(from.dtype, to.dtype, &[])?;
    for element in 0..elements {
        let (mut rest, mut at, mut to_at) = (element, 0, 0);
        for dim in (0..from.shape.len()).rev() {
            let index = rest % from.shape[dim];
            rest /= from.shape[dim];
            at += (index * from.strides[dim]) as usize * width;
            to_at += (index * to.strides[dim]) as usize * to_width;
        }
        let bytes = num::convert(from.dtype, to.dtype, &source[at..at + width])?;
        result[to_at..to_at + to_width].copy_from_slice(&bytes);
    }
    Some(result)
}

/// Strides of a tensor that lies in any order of its dimensions, with gaps; repeated or overlapping now and then.
fn strides(random: &mut Random, shape: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if random.below(2) == 0 {
        order.sort_by_cached_key(|_| random.below(1 << 30));
    }
    let mut strides = vec![0; shape.len()];
    let mut step = 1;
    for &dim in order.iter().rev() {
        let gap = if random.below(3) == 0 { random.below(4) } else { 0 };
        strides[dim] = step + gap;
        step = strides[dim] * shape[dim].max(1);
    }
    if random.below(6) == 0
        && let Some(dim) = shape.len().checked_sub(1).map(|last| random.below(last as u64 + 1) as usize)
    {
        strides[dim] = random.below(3);
    }
    strides
}

/// Any bits, and often what is hard to convert: ties, subnormals, infinities, NaNs with payloads.
fn bytes(random: &mut Random, dtype: DType, length: usize) -> Vec<u8> {
    let hard = [
        0x7fc0_0001u32,
        0xff80_0001,
        0x7f80_0000,
        0xff80_0000,
        0x3f80_8000,
        0x3f81_8000,
        0x8000_0000,
        0x0000_8000,
        0x0001_8000,
        0x3f80_1000,
        0x3f80_3000,
        0x477f_efff,
        0x477f_f000,
        0x3300_0000,
        0x3300_0001,
        0x7f7f_ffff,
        0x0000_0001,
    ];
    let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
    if dtype == DType::F32 && random.below(2) == 0 {
        for chunk in bytes.as_chunks_mut::<4>().0 {
            *chunk = hard[random.below(hard.len() as u64) as usize].to_le_bytes();
        }
    }
    bytes
}

fn check(seed: u64, dtypes: (DType, DType), shape: &[u64]) {
    let mut random = Random::new(seed);
    let mut layout = |dtype| Layout { dtype, shape: shape.into(), strides: strides(&mut random, shape).into() };
    let (from, to) = (layout(dtypes.0), layout(dtypes.1));
    // Bytes before and behind the elements, so that these begin anywhere.
    let (before, behind) = (random.below(70) as usize, random.below(70) as usize);
    let source = bytes(&mut random, from.dtype, before + from.span_bytes().unwrap() as usize + behind);
    let mut target = bytes(&mut random, DType::U8, behind + to.span_bytes().unwrap() as usize + before);
    let expected = slow(&source[before..], &from, &target[behind..], &to);
    let guard = target[..behind].to_vec();
    let was = target.clone();
    let result = copy_elements(&source[before..], &from, &mut target[behind..], &to);
    match expected {
        Some(expected) => {
            assert_eq!(result, Ok(()));
            assert!(target[behind..] == expected[..], "seed {seed}: {from:?} to {to:?}");
            assert!(target[..behind] == guard[..], "seed {seed}");
        }
        None => {
            assert_eq!(result, Err(CopyError::Conversion { from: from.dtype, to: to.dtype }));
            assert!(target == was);
        }
    }
}

/// Two dtypes: the same, two floats, or any.
fn pair() -> impl Strategy<Value = (DType, DType)> {
    let any = prop::sample::select(DTYPES.to_vec());
    let float = prop::sample::select(DTYPES[..4].to_vec());
    prop_oneof![any.clone().prop_map(|dtype| (dtype, dtype)), (float.clone(), float), (any.clone(), any)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn any_copy_is_what_a_slow_loop_gives(seed: u64, dtypes in pair(), shape in prop::collection::vec(0u64..6, 0..5)) {
        check(seed, dtypes, &shape);
    }

    #[test]
    fn long_lines_are_copied_as_a_slow_loop_does(
        seed: u64,
        dtypes in pair(),
        shape in prop_oneof![
            prop::collection::vec(1u64..90, 1..3),
            (1u64..4, 1000u64..1100).prop_map(|(outer, inner)| vec![outer, inner]),
            (1000u64..1100, 1u64..4).prop_map(|(outer, inner)| vec![outer, inner]),
        ],
    ) {
        check(seed, dtypes, &shape);
    }
}

#[test]
fn every_float_of_two_bytes_is_converted_as_the_evaluator_does() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for from in [DType::F16, DType::Bf16] {
        for to in DTYPES.into_iter().filter(|&to| class::class(to) != class::Class::Opaque) {
            let expected = num::convert(from, to, &all).unwrap();
            let mut found = vec![0; expected.len()];
            let layout = |dtype| Layout::dense(dtype, &[1 << 16]).unwrap();
            copy_elements(&all, &layout(from), &mut found, &layout(to)).unwrap();
            assert!(found == expected, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn the_last_of_several_elements_for_one_place_stays() {
    let layout = |strides: [u64; 2]| Layout { dtype: DType::U8, shape: [2, 3][..].into(), strides: strides[..].into() };
    let copied = |strides, length| {
        let mut target = vec![9; length];
        copy_elements(&[0, 1, 2, 3, 4, 5], &layout([3, 1]), &mut target, &layout(strides)).unwrap();
        target
    };
    assert_eq!(copied([0, 1], 4), [3, 4, 5, 9]);
    assert_eq!(copied([1, 0], 3), [2, 5, 9]);
    assert_eq!(copied([0, 0], 2), [5, 9]);
    assert_eq!(copied([1, 1], 5), [0, 3, 4, 5, 9]);
    assert_eq!(copied([1, 2], 6), [0, 3, 1, 4, 2, 5]);
}

#[test]
fn copies_that_make_no_sense_are_refused_before_anything_is_written() {
    let layout = |dtype, shape: &[u64], strides: &[u64]| Layout { dtype, shape: shape.into(), strides: strides.into() };
    let dense = |shape: &[u64]| Layout::dense(DType::F32, shape).unwrap();
    let mut target = [7; 16];
    let mut refused = |from: &Layout, to: &Layout, bytes: usize| {
        let error = copy_elements(&vec![0; bytes], from, &mut target, to).unwrap_err();
        assert_eq!(target, [7; 16]);
        error.to_string()
    };
    let shapes = refused(&dense(&[4]), &dense(&[2, 2]), 16);
    assert_eq!(
        shapes,
        "elements of shape [4] cannot go to elements of shape [2, 2]; expected equal shapes, and a stride for each size"
    );
    assert!(refused(&layout(DType::F32, &[4], &[]), &dense(&[4]), 16).contains("a stride for each size"));
    assert_eq!(refused(&dense(&[4]), &dense(&[4]), 15), "the source has 15 bytes; expected 16 for its layout");
    assert_eq!(refused(&dense(&[5]), &dense(&[5]), 20), "the target has 16 bytes; expected 20 for its layout");
    let far = layout(DType::F32, &[2], &[u64::MAX / 4 - 1]);
    assert_eq!(
        refused(&far, &dense(&[2]), 16),
        "the source has 16 bytes; expected 18446744073709551612 for its layout"
    );
    let too_far = layout(DType::F32, &[2], &[u64::MAX]);
    assert_eq!(refused(&too_far, &dense(&[2]), 16), "the source has 16 bytes; expected more than 2^64 for its layout");
    let complex = refused(&dense(&[2]), &layout(DType::C64, &[2], &[1]), 16);
    assert_eq!(complex, "there is no conversion of float32 to complex64");
    // A stride that is never taken may be anything.
    let mut one = [0; 4];
    copy_elements(&[1; 4], &layout(DType::F32, &[1], &[u64::MAX]), &mut one, &dense(&[1])).unwrap();
    assert_eq!(one, [1; 4]);
}
