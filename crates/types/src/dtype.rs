//! Element types.

macro_rules! dtypes {
    ($($variant:ident $bytes:literal $short:literal $torch:literal;)*) => {
        /// Element type of a tensor.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[expect(missing_docs, reason = "each variant is the dtype of that name")]
        pub enum DType { $($variant),* }

        impl DType {
            /// Every dtype.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Bytes of one element.
            #[must_use]
            pub const fn bytes(self) -> u64 {
                match self { $(Self::$variant => $bytes),* }
            }

            /// The short name in annotations (`f32`), as `torch.utils._dtype_abbrs` has it.
            #[must_use]
            pub const fn short_name(self) -> &'static str {
                match self { $(Self::$variant => $short),* }
            }

            /// The name in PyTorch's namespace (`float32`).
            #[must_use]
            pub const fn torch_name(self) -> &'static str {
                match self { $(Self::$variant => $torch),* }
            }
        }
    };
}

dtypes! {
    F64 8 "f64" "float64";
    F32 4 "f32" "float32";
    F16 2 "f16" "float16";
    Bf16 2 "bf16" "bfloat16";
    F8E4m3fn 1 "f8e4m3fn" "float8_e4m3fn";
    F8E5m2 1 "f8e5m2" "float8_e5m2";
    F8E4m3fnuz 1 "f8e4m3fnuz" "float8_e4m3fnuz";
    F8E5m2fnuz 1 "f8e5m2fnuz" "float8_e5m2fnuz";
    F8E8m0fnu 1 "f8e8m0fnu" "float8_e8m0fnu";
    F4E2m1fnX2 1 "f4e2m1fn_x2" "float4_e2m1fn_x2";
    C32 4 "c32" "complex32";
    C64 8 "c64" "complex64";
    C128 16 "c128" "complex128";
    I64 8 "i64" "int64";
    I32 4 "i32" "int32";
    I16 2 "i16" "int16";
    I8 1 "i8" "int8";
    U64 8 "u64" "uint64";
    U32 4 "u32" "uint32";
    U16 2 "u16" "uint16";
    U8 1 "u8" "uint8";
    Bool 1 "b8" "bool";
}

impl DType {
    /// The dtype of a short name, of a PyTorch name or of `bool`, `f8e4m3`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let known = Self::ALL.iter().copied().find(|d| d.short_name() == name || d.torch_name() == name);
        known.or(match name {
            "f8e4m3" => Some(Self::F8E4m3fn),
            "half" => Some(Self::F16),
            "float" => Some(Self::F32),
            "double" => Some(Self::F64),
            "long" => Some(Self::I64),
            "int" => Some(Self::I32),
            _ => None,
        })
    }
}
