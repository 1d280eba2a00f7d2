//! Costs as JSON: `docs/planning.md` names every field.

use super::costs::{CopyCost, CostError, Costs, GroupCosts, Map, MessageCost, Piece};
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "bucketeer-costs-1";

/// Names of kinds, as [`CollectiveKind::name`](crate::ir::CollectiveKind::name) has them.
const KINDS: &[&str] = &["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "permute"];

/// Why a text is not costs.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum CostsJsonError {
    #[error("the JSON does not hold costs: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("found schema `{found}`, expected `{SCHEMA}`")]
    Schema { found: String },
    #[error("group `{group}`: found costs for `{kind}`, expected one of {}", KINDS.join(", "))]
    Kind { group: String, kind: String },
    #[error("group `{group}`, {kind}: {error}")]
    Cost { group: String, kind: String, error: Box<CostError> },
    #[error("`copy`: found `ns_per_byte_den` 0, expected at least 1")]
    Copy,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<Group> {
    schema: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    collectives: Option<u64>,
    compute_ns: Map<u64>,
    groups: Map<Group>,
    #[serde(default)]
    copy: CopyCost,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryRecord>,
}

/// A group as it is read: what is wrong with a cost is said with its kind and group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadGroup {
    #[serde(default)]
    label: Box<str>,
    size: u32,
    costs: Map<Vec<Piece>>,
}

impl ReadGroup {
    fn checked(self, group: &str) -> Result<GroupCosts, CostsJsonError> {
        let costs = self.costs.into_iter().map(|(kind, pieces)| {
            if !KINDS.contains(&&*kind) {
                return Err(CostsJsonError::Kind { group: group.to_owned(), kind: kind.into() });
            }
            match MessageCost::new(pieces) {
                Ok(cost) => Ok((kind, cost)),
                Err(error) => {
                    let (group, kind, error) = (group.to_owned(), kind.into(), Box::new(error.into()));
                    Err(CostsJsonError::Cost { group, kind, error })
                }
            }
        });
        Ok(GroupCosts { label: self.label, size: self.size, costs: costs.collect::<Result<_, _>>()? })
    }
}

/// What a file of costs says of memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryRecord {
    /// The peak of the graph as it stands.
    pub as_written_peak_bytes: u64,
    /// Caps on the peak, by name.
    pub caps_bytes: Map<u64>,
}

impl Costs {
    /// Reads costs, and what the file says of memory, if it does.
    ///
    /// # Errors
    /// [`CostsJsonError`], naming the field, the group and the kind.
    pub fn from_json(text: &str) -> Result<(Self, Option<MemoryRecord>), CostsJsonError> {
        let document: Document<ReadGroup> = serde_json::from_str(text)?;
        if document.schema != SCHEMA {
            return Err(CostsJsonError::Schema { found: document.schema });
        }
        let checked = |(name, group): (Box<str>, ReadGroup)| group.checked(&name).map(|group| (name, group));
        let groups = document.groups.into_iter().map(checked).collect::<Result<_, _>>()?;
        if document.copy.ns_per_byte_den == 0 {
            return Err(CostsJsonError::Copy);
        }
        Ok((Self { compute_ns: document.compute_ns, groups, copy: document.copy }, document.memory))
    }

    /// Writes costs.
    #[must_use]
    pub fn to_json(&self) -> String {
        let document = Document {
            schema: SCHEMA.to_owned(),
            instance: None,
            nodes: None,
            collectives: None,
            compute_ns: self.compute_ns.clone(),
            groups: self.groups.clone(),
            copy: self.copy,
            memory: None,
        };
        // The document holds numbers and strings alone, which JSON can always write.
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }
}
