//! The header of a `.safetensors` file.

use super::{METADATA, TensorFault, dtype_of, file_fault};
use safetensors::tensor::TensorInfo;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// A header's tensors.
pub(super) struct Header(pub BTreeMap<String, TensorInfo>);

impl<'de> serde::Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut tensors = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let named = |error| A::Error::custom(format!("tensor `{name}`: {error}"));
                    let info = map.next_value::<TensorInfo>().map_err(named)?;
                    if tensors.contains_key(&name) {
                        return Err(A::Error::custom(format!("tensor `{name}`: it is there twice")));
                    }
                    tensors.insert(name, info);
                }
                Ok(Header(tensors))
            }
        }
        from.deserialize_map(Tensors)
    }
}

impl Header {
    /// Tensors lie end to end, each as long as its dtype and shape make it, and fill what the file holds.
    pub(super) fn check(&self, data_bytes: u64) -> Result<(), TensorFault> {
        let mut all: Vec<(&String, &TensorInfo)> = self.0.iter().collect();
        all.sort_by_key(|(_, info)| info.data_offsets);
        let mut at = 0;
        for (name, info) in all {
            let (begin, end) = info.data_offsets;
            let range = || format!("bytes {begin} to {end}");
            let fault = |found: String, expected: String| TensorFault::Tensor { tensor: name.clone(), found, expected };
            if begin != at {
                return Err(fault(range(), format!("a start at {at}, where the tensor before it ends")));
            }
            let bytes = bytes_of(info);
            if bytes.is_none() || bytes != end.checked_sub(begin) {
                let bytes = bytes.map_or_else(|| "a size".to_owned(), |bytes| format!("{bytes} bytes"));
                return Err(fault(range(), format!("{bytes} for {}", describe(info))));
            }
            if end as u64 > data_bytes {
                return Err(fault(format!("{} of its bytes", data_bytes - begin as u64), format!("{}", end - begin)));
            }
            at = end;
        }
        if at as u64 != data_bytes {
            return Err(file_fault(
                format!("{data_bytes} bytes of tensors"),
                format!("the {at} that its header tells of"),
            ));
        }
        Ok(())
    }
}

/// Bytes that a dtype and a shape make; none if they are not a whole number below 2^64.
fn bytes_of(info: &TensorInfo) -> Option<usize> {
    let elements = info.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
    let bits = elements.checked_mul(info.dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// `f32[4, 2]`.
pub(super) fn describe(info: &TensorInfo) -> String {
    let dtype = dtype_of(info.dtype).map_or_else(|| info.dtype.to_string(), |dtype| dtype.short_name().to_owned());
    format!("{dtype}{:?}", info.shape)
}
