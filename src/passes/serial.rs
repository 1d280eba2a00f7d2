//! Plans and reports as data: `Serialize`, by names instead of numbers of nodes. `docs/json.md` has the forms.
//!
//! Options are their text, which holds what differs from the defaults: a new option changes no file that was written
//! before.

use super::memory::MemoryUse;
use super::pipeline::PassReport;
use super::plan::{BucketPlan, Decision, Remark};
use super::select::{Outcome, Refusal, Selection};
use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

impl Serialize for Remark {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("group", &self.group)?;
        map.serialize_entry("bytes", &self.bytes)?;
        match &self.decision {
            // People count buckets from 1.
            Decision::Merged { bucket } => map.serialize_entry("bucket", &(bucket + 1))?,
            Decision::Alone(reason) => {
                map.serialize_entry("reason", reason.label())?;
                map.serialize_entry("because", &reason.to_string())?;
            }
        }
        map.end()
    }
}

impl Serialize for BucketPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = 4 + usize::from(self.memory.is_some());
        let mut plan = serializer.serialize_struct("BucketPlan", fields)?;
        plan.serialize_field("kind", self.options.kind.name())?;
        plan.serialize_field("options", &self.options.to_string())?;
        plan.serialize_field("buckets", &self.remarked_names())?;
        plan.serialize_field("remarks", &self.remarks)?;
        if let Some(memory) = &self.memory {
            plan.serialize_field("memory", memory)?;
        }
        plan.end()
    }
}

impl Serialize for MemoryUse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut memory = serializer.serialize_struct("MemoryUse", 7)?;
        memory.serialize_field("cap_bytes", &self.cap_bytes)?;
        memory.serialize_field("before_bytes", &self.before_bytes)?;
        memory.serialize_field("before_at", &self.before_at)?;
        memory.serialize_field("after_bytes", &self.after_bytes)?;
        memory.serialize_field("unknown", &self.unknown)?;
        memory.serialize_field("cut", &self.cut)?;
        memory.serialize_field("declined", &self.declined)?;
        memory.end()
    }
}

impl Serialize for PassReport {
    /// Without its time, which differs from run to run.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("pass", self.name)?;
        map.serialize_entry("removed", &self.removed)?;
        if let Some(plan) = &self.plan {
            map.serialize_entry("plan", plan)?;
        }
        if let Some(merge) = &self.merge {
            map.serialize_entry("launches", &merge.launches.len())?;
            map.serialize_entry("moved", &merge.moved)?;
            map.serialize_entry("copied", &merge.copied)?;
            map.serialize_entry("dropped_wishes", &merge.dropped_wishes)?;
        }
        map.end()
    }
}

impl Serialize for Selection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut selection = serializer.serialize_struct("Selection", 2)?;
        selection.serialize_field("buckets", &self.buckets)?;
        selection.serialize_field("outcomes", &self.outcomes)?;
        selection.end()
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("node", &self.node)?;
        match self.bucket {
            Ok(bucket) => map.serialize_entry("bucket", &(bucket + 1))?,
            Err(refusal) => {
                map.serialize_entry("reason", refusal.label())?;
                if let Refusal::CapReached { other } | Refusal::Dependent { other } = refusal {
                    map.serialize_entry("other", &other)?;
                }
                if let Refusal::Oversize { cap_bytes } = refusal {
                    map.serialize_entry("cap_bytes", &cap_bytes)?;
                }
            }
        }
        map.end()
    }
}
