//! The JSON form, for machines: the types as they are. Views refer to layouts by index.

use super::{Program, ProgramError};

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
pub(super) const fn is_zero(value: &u64) -> bool {
    *value == 0
}

pub(super) mod dtype {
    use crate::ir::DType;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
    pub fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.short_name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        let name = std::borrow::Cow::<str>::deserialize(from)?;
        DType::from_name(&name).ok_or_else(|| D::Error::custom(format!("`{name}` is not a dtype")))
    }
}

pub(super) mod reduce_op {
    use crate::ir::ReduceOp;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
    pub fn serialize<S: Serializer>(op: &ReduceOp, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(op.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ReduceOp, D::Error> {
        let name = std::borrow::Cow::<str>::deserialize(from)?;
        ReduceOp::from_name(&name).ok_or_else(|| D::Error::custom(format!("`{name}` is not a reduce op")))
    }
}

pub(super) mod args {
    use crate::ir::Args;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(args: &Args, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::super::args::print(args))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Args, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        super::super::parse::arguments(&text).map_err(D::Error::custom)
    }
}

impl Program {
    /// The JSON form; ends in a line end.
    ///
    /// # Panics
    /// Never: names and numbers always serialise.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers always serialise") + "\n"
    }

    /// Reads the JSON form, and checks that all it refers to is there.
    ///
    /// # Errors
    /// [`ProgramError`], naming the place.
    pub fn from_json(text: &str) -> Result<Self, ProgramError> {
        let program: Self = serde_json::from_str(text)?;
        program.check_form()?;
        Ok(program)
    }
}
