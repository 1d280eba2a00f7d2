//! A plan of one's own as JSON: `docs/json.md` names every field.

use super::own::{OwnBucket, OwnMembers, OwnPlan};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

const FORMAT: &str = "bucketeer-own-plan";
const VERSION: u32 = 1;

/// Why a text is not a plan of one's own.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum OwnPlanJsonError {
    #[error("the JSON does not hold a plan: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("found format `{found}`, expected `{FORMAT}`")]
    Format { found: String },
    #[error("found version {found} of `{FORMAT}`, expected {VERSION}")]
    Version { found: u32 },
}

/// What every version has.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    buckets: Vec<BucketRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BucketRecord {
    members: Vec<MembersRecord>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    separate: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    launch_after: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    launch_before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wait_before: Option<String>,
}

/// A pattern of names, or several fields.
struct MembersRecord(OwnMembers);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldsRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    above: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    below: Option<String>,
}

impl<'de> Deserialize<'de> for MembersRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = MembersRecord;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pattern of names, or an object of patterns")
    }

    fn visit_str<E>(self, pattern: &str) -> Result<MembersRecord, E> {
        Ok(MembersRecord(OwnMembers::named(pattern)))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MembersRecord, A::Error> {
        let FieldsRecord { name, input, source, kind, group, above, below } =
            FieldsRecord::deserialize(MapAccessDeserializer::new(map))?;
        Ok(MembersRecord(OwnMembers { name, input, source, kind, group, above, below }))
    }
}

impl Serialize for MembersRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(name) = self.0.name.as_deref()
            && self.0 == OwnMembers::named(name)
        {
            return name.serialize(serializer);
        }
        let OwnMembers { name, input, source, kind, group, above, below } = self.0.clone();
        FieldsRecord { name, input, source, kind, group, above, below }.serialize(serializer)
    }
}

impl OwnPlan {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`OwnPlanJsonError`], with line and column where the JSON is at fault or has a field that is not known.
    pub fn from_json(text: &str) -> Result<Self, OwnPlanJsonError> {
        let Head { format, version } = serde_json::from_str(text)?;
        if format != FORMAT {
            return Err(OwnPlanJsonError::Format { found: format });
        }
        if version != VERSION {
            return Err(OwnPlanJsonError::Version { found: version });
        }
        let document: Document = serde_json::from_str(text)?;
        let bucket = |record: BucketRecord| OwnBucket {
            members: record.members.into_iter().map(|members| members.0).collect(),
            separate: record.separate,
            launch_after: record.launch_after,
            launch_before: record.launch_before,
            wait_before: record.wait_before,
        };
        Ok(Self { buckets: document.buckets.into_iter().map(bucket).collect() })
    }

    /// Writes a plan.
    #[must_use]
    pub fn to_json(&self) -> String {
        let record = |bucket: &OwnBucket| BucketRecord {
            members: bucket.members.iter().cloned().map(MembersRecord).collect(),
            separate: bucket.separate,
            launch_after: bucket.launch_after.clone(),
            launch_before: bucket.launch_before.clone(),
            wait_before: bucket.wait_before.clone(),
        };
        let buckets = self.buckets.iter().map(record).collect();
        let document = Document { format: FORMAT.to_owned(), version: VERSION, buckets };
        // The document holds strings alone, which JSON can always write.
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }
}
