//! Floats of two bytes to `f32` and back, in forms without branches that vectorise.

/// The bits of a `bf16` as `f32`; exact.
#[inline(always)]
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounded to nearest, ties to even. Every NaN becomes the canonical one.
#[inline(always)]
pub fn to_bf16(value: f32) -> u16 {
    (round_bf16(value) >> 16) as u16
}

/// The bits of the same as `f32`, with a lower half of any bits.
#[inline(always)]
pub fn round_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if value.is_nan() { 0x7fc0_0000 } else { rounded }
}

/// The bits of an `f16` as `f32`; exact.
#[inline(always)]
pub fn from_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The exponent's bias differs by 112.
    let normal = magnitude + (112 << 23);
    // Subnormals are whole numbers of 2^-24; as `f32` they are normal, and no slow arithmetic of subnormals is met.
    let subnormal = (i32::from(bits & 0x3ff) as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    // Exponent 31, infinity and NaN, becomes 255.
    let special = magnitude | 0x7f80_0000;
    let finite = if bits & 0x7c00 == 0 { subnormal } else { normal };
    let bits_abs = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(bits_abs | u32::from(bits & 0x8000) << 16)
}

/// Rounded to nearest, ties to even. Every NaN becomes the canonical one.
#[inline(always)]
pub fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let abs = bits & 0x7fff_ffff;
    // Normal results: move the exponent and round by an addition that carries into it.
    let normal = abs.wrapping_sub(112 << 23).wrapping_add(0xfff + (abs >> 13 & 1)) >> 13;
    // Below 2^-14: adding 1/2 lets the hardware round at the place of the last bit of a subnormal, 2^-24.
    let subnormal = (f32::from_bits(abs) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = if abs < 113 << 23 { subnormal } else { normal };
    // From 65520 on, all round to infinity.
    let magnitude = if abs >= 0x477f_f000 { 0x7c00 } else { finite };
    if value.is_nan() { 0x7e00 } else { magnitude as u16 | sign }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_of_two_bytes_is_the_same_number() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (from_f16(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
            assert!(ours.is_nan() || to_f16(ours) == bits, "{bits:#x}");
            let (ours, theirs) = (from_bf16(bits), half::bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
            assert!(ours.is_nan() || to_bf16(ours) == bits, "{bits:#x}");
        }
    }

    #[test]
    fn narrowing_rounds_as_the_half_crate_does() {
        // A step that is odd visits all exponents, and the patterns near ties come from the loop below.
        let near = (0..=u16::MAX).flat_map(|high| {
            [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001].map(|low| u32::from(high) << 16 | low)
        });
        for bits in (0..u32::MAX).step_by(9_973).chain(near) {
            let value = f32::from_bits(bits);
            if value.is_nan() {
                assert_eq!((to_f16(value), to_bf16(value)), (0x7e00, 0x7fc0));
                continue;
            }
            assert_eq!(to_f16(value), half::f16::from_f32(value).to_bits(), "{bits:#x}");
            assert_eq!(to_bf16(value), half::bf16::from_f32(value).to_bits(), "{bits:#x}");
        }
    }
}
