//! Which bytes of its storage a value takes, and which bytes are pending.
//!
//! Several collectives may be in flight in parts of one buffer. What types and constant bounds say is followed; any other
//! view counts as all of what it is a view of.

use crate::ir::args::{Arg, Args};
use crate::ir::entities::NodeId;
use crate::ir::graph::Graph;
use crate::ir::operators::ViewKind;
use crate::ir::ops::Op;
use crate::ir::types::{Dim, TensorType};
use std::collections::BTreeMap;

/// The bytes of a storage among which all elements of a value lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u64,
    end: u64,
    /// Whether the value begins at `start`.
    begins: bool,
}

impl Span {
    /// All of a storage, by a value that begins it.
    pub const ALL: Self = Self { start: 0, end: u64::MAX, begins: true };

    /// The same bytes, by a value that may begin anywhere among them.
    pub const fn somewhere(self) -> Self {
        Self { begins: false, ..self }
    }

    /// The bytes of a view of a value that takes these.
    pub fn of_view(self, graph: &Graph, id: NodeId) -> Self {
        let Op::Call(target) = graph.node(id).op else { return self.somewhere() };
        let operand = graph.operands(id).first().and_then(|&from| graph.tensor(from));
        let operator = graph.operator(target);
        // Others have their arguments in other places, as the native `slice` has.
        if operator.namespace() != "aten" {
            return self.somewhere();
        }
        let Some(from) = operand.filter(|from| self.begins && from.is_dense()) else { return self.somewhere() };
        match operator.view() {
            Some(kind) if kind.keeps_order() => self,
            Some(kind) => self.of_rows(from, kind, graph.args_of(id)).unwrap_or_else(|| self.somewhere()),
            None => self.somewhere(),
        }
    }

    /// The bytes of some rows of a dense tensor.
    fn of_rows(self, from: &TensorType, kind: ViewKind, args: &Args) -> Option<Self> {
        let rows = from.shape.first()?.as_const()?;
        let bytes = from.bytes().as_ref().and_then(Dim::as_const)?;
        if args.at(1, "dim").map_or(Some(0), Arg::as_int)? != 0 || rows == 0 || bytes == 0 {
            return None;
        }
        let row = |at: i64| {
            let from_end = at.checked_add(i64::try_from(rows).ok()?)?;
            u64::try_from(if at < 0 { from_end } else { at }).ok()
        };
        let (first, last) = match kind {
            // Every other row is among these, but a part of it is not where types would have it.
            ViewKind::Slice if args.at(4, "step").is_some_and(|step| step.as_int() != Some(1)) => return None,
            ViewKind::Slice => {
                let bound = |place, name, or| match args.at(place, name) {
                    None | Some(Arg::None) => Some(or),
                    Some(arg) => row(arg.as_int()?),
                };
                (bound(2, "start", 0)?, bound(3, "end", rows)?.min(rows))
            }
            ViewKind::Narrow => {
                let first = row(args.at(2, "start")?.as_int()?)?;
                (first, first.checked_add(u64::try_from(args.at(3, "length")?.as_int()?).ok()?)?)
            }
            ViewKind::Select => {
                let first = row(args.at(2, "index")?.as_int()?)?;
                (first, first.checked_add(1)?)
            }
            _ => return None,
        };
        // A part without elements counts as what it is a part of.
        if first >= last || last > rows {
            return None;
        }
        let at = |place: u64| self.start.checked_add((bytes / rows).checked_mul(place)?);
        Some(Self { start: at(first)?, end: at(last)?, begins: true })
    }
}

/// What is pending in one storage: spans that do not overlap, by where they start.
#[derive(Clone, Default)]
pub(super) struct Pending(BTreeMap<u64, (u64, NodeId)>);

impl Pending {
    /// What made any of these bytes pending.
    pub fn by(&self, span: Span) -> Option<NodeId> {
        self.last(span).map(|(_, by)| by)
    }

    /// Ends whatever made any of these bytes pending, and makes them pending by another, if there is one.
    pub fn set(&mut self, span: Span, by: Option<NodeId>) {
        while let Some((start, _)) = self.last(span) {
            self.0.remove(&start);
        }
        if let Some(by) = by {
            self.0.insert(span.start, (span.end, by));
        }
    }

    /// The last entry that overlaps. Entries do not, so that if the last one that starts before the end of the span ends
    /// before its start, all others do.
    fn last(&self, span: Span) -> Option<(u64, NodeId)> {
        let (&start, &(end, by)) = self.0.range(..span.end).next_back()?;
        (end > span.start).then_some((start, by))
    }
}
