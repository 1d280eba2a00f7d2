//! Values with padding between their parts: a bucket with its members at aligned offsets.
//!
//! Such a value is handed from the `cat` to its collective and from the collective to the split that takes it apart; the
//! plan of buckets sees to it that nothing else reads it.

use super::LowerError;
use super::build::refuse;
use super::walk::{Lowering, Padded, Value};
use crate::ir::NodeId;
use crate::ir::operators::{OperatorId, ViewKind};
use crate::program::{Layout, View};

impl Lowering<'_> {
    /// A node that reads a value with padding.
    pub(super) fn of_padded(&mut self, id: NodeId, number: u32) -> Result<Value, LowerError> {
        let padded = self.paddeds[number as usize];
        match self.facts.operator(id) {
            OperatorId::View(ViewKind::SplitWithSizes) if !padded.sent => self.members_of(id, padded),
            _ if self.facts.is_flat_view(id) => Ok(Value::Padded(number)),
            _ => refuse(self.graph, id, "it reads a padded bucket as a whole"),
        }
    }

    fn members_of(&mut self, id: NodeId, padded: Padded) -> Result<Value, LowerError> {
        let bucket = self.plan.buckets[padded.bucket as usize].clone();
        let input = self.graph.collective_inputs(bucket.launch)[0];
        let Some(dtype) = self.graph.tensor(input).map(|ty| ty.dtype) else {
            return refuse(self.graph, id, "its dtype is not known");
        };
        let mut parts = Vec::with_capacity(bucket.members.len());
        for member in &bucket.members {
            let shape: &[u64] = if padded.rows > 1 { &[padded.rows, member.elements] } else { &[member.elements] };
            let Some(mut layout) = Layout::dense(dtype, shape) else {
                return refuse(self.graph, id, "its size passes 64 bits");
            };
            if padded.rows > 1 {
                layout.strides[0] = bucket.row_bytes / dtype.bytes();
            }
            let layout = self.build.layout_id(layout);
            let Padded { buffer, offset, rank_bytes, .. } = padded;
            parts.push(Value::Tensor(View { buffer, layout, offset: offset + member.offset, rank_bytes }));
        }
        Ok(self.tuple(parts))
    }
}
