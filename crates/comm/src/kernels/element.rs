//! Elements of each dtype as numbers, as little-endian bytes in memory.

use super::half::{from_bf16, from_f16, to_bf16, to_f16};

/// A dtype that is reduced: how its bytes become a number and back, and its arithmetic, rounded to the dtype.
///
/// Every NaN that arithmetic makes is the canonical one, so that a result does not depend on which operand's payload
/// won.
pub trait Element: Copy {
    type Bytes: Copy;
    fn load(bytes: Self::Bytes) -> Self;
    fn store(self) -> Self::Bytes;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// Divided by a number of ranks.
    fn over(self, ranks: u32) -> Self;
}

/// What floats have besides.
pub trait Real: Element {
    /// The nearest value of the dtype.
    fn nearest(value: f64) -> Self;
    /// The same number.
    fn wide(self) -> f64;
    /// What [`store`](Element::store) rounds to the nearest value of the dtype.
    fn unrounded(value: f64) -> Self;
}

/// What integers and bools have besides.
pub trait Bits: Element {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! floats {
    ($($float:ident)*) => {$(
        impl Element for $float {
            type Bytes = [u8; size_of::<$float>()];

            #[inline(always)]
            fn load(bytes: Self::Bytes) -> Self {
                Self::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn store(self) -> Self::Bytes {
                let value = if self.is_nan() { $float::NAN } else { self };
                value.to_le_bytes()
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let least = if other < self { other } else { self };
                if other.is_nan() { other } else { least }
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let most = if other > self { other } else { self };
                if other.is_nan() { other } else { most }
            }

            #[inline(always)]
            fn over(self, ranks: u32) -> Self {
                self / ranks as $float
            }
        }

        impl Real for $float {
            #[inline(always)]
            fn nearest(value: f64) -> Self {
                value as $float
            }

            #[inline(always)]
            fn wide(self) -> f64 {
                self.into()
            }

            #[inline(always)]
            fn unrounded(value: f64) -> Self {
                value as $float
            }
        }
    )*};
}

floats! { f32 f64 }

macro_rules! halves {
    ($($name:ident $widen:ident $narrow:ident;)*) => {$(
        /// A float of two bytes, computed with as `f32` and rounded at each store.
        #[derive(Clone, Copy)]
        pub struct $name(f32);

        impl Element for $name {
            type Bytes = [u8; 2];

            #[inline(always)]
            fn load(bytes: Self::Bytes) -> Self {
                Self($widen(u16::from_le_bytes(bytes)))
            }

            #[inline(always)]
            fn store(self) -> Self::Bytes {
                $narrow(self.0).to_le_bytes()
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                Self($widen($narrow(self.0 * other.0)))
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Self(Element::min(self.0, other.0))
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Self(Element::max(self.0, other.0))
            }

            #[inline(always)]
            fn over(self, ranks: u32) -> Self {
                Self(self.0 / ranks as f32)
            }
        }

        impl Real for $name {
            #[inline(always)]
            fn nearest(value: f64) -> Self {
                Self($widen($narrow(value as f32)))
            }

            #[inline(always)]
            fn wide(self) -> f64 {
                self.0.into()
            }

            #[inline(always)]
            fn unrounded(value: f64) -> Self {
                Self(value as f32)
            }
        }
    )*};
}

halves! {
    F16 from_f16 to_f16;
    Bf16 from_bf16 to_bf16;
}

macro_rules! integers {
    // `$wide` holds every value and every number of ranks.
    ($($int:ident $wide:ident;)*) => {$(
        impl Element for $int {
            type Bytes = [u8; size_of::<$int>()];

            #[inline(always)]
            fn load(bytes: Self::Bytes) -> Self {
                Self::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn store(self) -> Self::Bytes {
                self.to_le_bytes()
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn over(self, ranks: u32) -> Self {
                ($wide::from(self) / $wide::from(ranks)) as $int
            }
        }

        impl Bits for $int {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

integers! {
    i8 i64;
    i16 i64;
    i32 i64;
    i64 i64;
    u8 u64;
    u16 u64;
    u32 u64;
    u64 u64;
}

/// A bool: any byte but zero is true. A sum is an or, a product an and.
#[derive(Clone, Copy)]
pub struct Bool(bool);

impl Element for Bool {
    type Bytes = [u8; 1];

    #[inline(always)]
    fn load(bytes: Self::Bytes) -> Self {
        Self(bytes[0] != 0)
    }

    #[inline(always)]
    fn store(self) -> Self::Bytes {
        [u8::from(self.0)]
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    fn over(self, _: u32) -> Self {
        self
    }
}

impl Bits for Bool {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}
