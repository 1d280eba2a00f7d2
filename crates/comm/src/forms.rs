//! Serde forms of what other crates define, for `#[serde(with = "...")]`.

/// A rank as its number.
pub mod rank {
    use bucketeer_types::GlobalRank;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks for it")]
    pub fn serialize<S: Serializer>(rank: &GlobalRank, to: S) -> Result<S::Ok, S::Error> {
        rank.0.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GlobalRank, D::Error> {
        u32::deserialize(from).map(GlobalRank)
    }
}

/// Ranks as a list of numbers.
pub mod ranks {
    use bucketeer_types::GlobalRank;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(ranks: &[GlobalRank], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(ranks.iter().map(|rank| rank.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>, T: From<Vec<GlobalRank>>>(from: D) -> Result<T, D::Error> {
        let ranks = Vec::<u32>::deserialize(from)?.into_iter().map(GlobalRank);
        Ok(ranks.collect::<Vec<_>>().into())
    }
}

/// Two ranks as their numbers.
#[cfg(feature = "mpi")]
pub mod pair {
    use bucketeer_types::GlobalRank;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>((a, b): &(GlobalRank, GlobalRank), to: S) -> Result<S::Ok, S::Error> {
        (a.0, b.0).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<(GlobalRank, GlobalRank), D::Error> {
        let (a, b) = Deserialize::deserialize(from)?;
        Ok((GlobalRank(a), GlobalRank(b)))
    }
}
