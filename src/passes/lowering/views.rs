//! Views as placements: where the result of a view operator lies in its operand's buffer.

use super::layouts;
use super::walk::{Lowering, Value};
use crate::ir::Short;
use crate::ir::operators::ViewKind;
use crate::ir::{Arg, NodeId, Op};
use crate::program::{Layout, View};

type Sizes = Short<u64, 4>;

impl Lowering<'_> {
    /// An integer argument.
    pub(super) fn int(&self, id: NodeId, arg: &Arg) -> Option<i64> {
        match arg {
            Arg::Int(value) => Some(*value),
            Arg::Operand(index) => match self.value(*self.graph.operands(id).get(*index as usize)?) {
                Value::Int(value) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn ints(&self, id: NodeId, arg: Option<&Arg>) -> Option<Short<i64, 4>> {
        match arg? {
            Arg::List(items) | Arg::Tuple(items) => items.iter().map(|item| self.int(id, item)).collect(),
            one => Some(Short::from([self.int(id, one)?])),
        }
    }

    fn int_or(&self, id: NodeId, arg: Option<&Arg>, default: i64) -> Option<i64> {
        match arg {
            None | Some(Arg::None) => Some(default),
            Some(arg) => self.int(id, arg),
        }
    }

    /// The value of a view, if it is a placement of a form that is known and agrees with the type that is stated.
    pub(super) fn view(&mut self, id: NodeId) -> Option<Value> {
        let &first = self.graph.operands(id).first()?;
        let kind = self.facts.view_kind(id)?;
        match self.value(first) {
            Value::Tuple(tuple) if matches!(kind, ViewKind::Element | ViewKind::TupleElement) => {
                let parts = &self.tuples[tuple as usize];
                let at = wrap(self.int(id, self.graph.args_of(id).at(1, "index")?)?, parts.len())?;
                Some(parts[at])
            }
            Value::Tuple(_) if kind == ViewKind::Same => Some(self.value(first)),
            Value::Tensor(from) => self.view_of_tensor(id, from, kind),
            _ => None,
        }
    }

    fn view_of_tensor(&mut self, id: NodeId, from: View, kind: ViewKind) -> Option<Value> {
        let old = self.build.layout(from).clone();
        let args = self.graph.args_of(id);
        if matches!(kind, ViewKind::Split | ViewKind::SplitWithSizes | ViewKind::Chunk | ViewKind::Unbind) {
            return self.split(id, from, &old, kind);
        }
        let stated: Option<Sizes> = match self.graph.tensor(id) {
            Some(ty) => Some(ty.shape.iter().map(crate::ir::Dim::as_const).collect::<Option<_>>()?),
            None => None,
        };
        let kept = |layout: Option<Layout>| layout.map(|layout| (layout, 0));
        let (layout, skip) = match kind {
            ViewKind::View | ViewKind::Bits if matches!(args.at(1, "dtype"), Some(Arg::DType(_))) => {
                let Some(Arg::DType(dtype)) = args.at(1, "dtype") else { return None };
                kept(layouts::bit_cast(&old, *dtype))
            }
            ViewKind::View | ViewKind::Reshape | ViewKind::Flatten | ViewKind::Unflatten => {
                kept(layouts::reshape(&old, stated.as_deref()?))
            }
            ViewKind::Permute => kept(self.permute(id, &old)),
            ViewKind::Transpose => kept(self.transpose(id, &old)),
            ViewKind::Expand => kept(layouts::expand(&old, stated.as_deref()?)),
            ViewKind::Slice | ViewKind::Narrow => self.slice(id, &old, kind),
            ViewKind::Select => self.select(id, &old, args.at(1, "dim"), args.at(2, "index")?),
            ViewKind::Element => self.select(id, &old, None, args.at(1, "index")?),
            ViewKind::Squeeze => kept(self.squeeze(id, &old)),
            ViewKind::Unsqueeze => {
                let dim = wrap(self.int(id, args.at(1, "dim")?)?, old.shape.len() + 1)?;
                kept(layouts::unsqueeze(&old, dim))
            }
            ViewKind::Same => kept(Some(old)),
            ViewKind::Contiguous if old.is_dense() => kept(Some(old)),
            ViewKind::Convert if self.stays(id) => kept(Some(old)),
            ViewKind::Contiguous
            | ViewKind::Convert
            | ViewKind::Bits
            | ViewKind::TupleElement
            | ViewKind::BroadcastInDim
            | ViewKind::Strided
            | ViewKind::Split
            | ViewKind::SplitWithSizes
            | ViewKind::Chunk
            | ViewKind::Unbind => None,
        }?;
        let agrees = stated.is_none_or(|stated| stated == layout.shape)
            && (self.unconverted.contains(&id) || self.graph.tensor(id).is_none_or(|ty| ty.dtype == layout.dtype));
        if !agrees {
            return None;
        }
        // A first element at an odd place cannot be read as a wider one.
        let view = self.build.moved(from, layout, skip)?;
        let element = self.build.layout(view).dtype.bytes();
        (view.offset.is_multiple_of(element) && view.rank_bytes.is_multiple_of(element)).then_some(Value::Tensor(view))
    }

    /// Whether a conversion changes nothing.
    fn stays(&self, id: NodeId) -> bool {
        let kind = |id: NodeId| self.graph.tensor(id).map(|ty| (ty.dtype, ty.device.clone()));
        let same = self.graph.operands(id).first().is_some_and(|&from| kind(from) == kind(id));
        let args = self.graph.args_of(id);
        let copies = args.get("copy").is_some() || args.get("memory_format").is_some();
        let only_dtype = matches!(args.at(1, "dtype"), Some(Arg::DType(_)));
        same && only_dtype && !copies
    }

    fn permute(&self, id: NodeId, old: &Layout) -> Option<Layout> {
        let dims = self.ints(id, self.graph.args_of(id).at(1, "dims"))?;
        let dims: Vec<usize> = dims.into_iter().map(|dim| wrap(dim, old.shape.len())).collect::<Option<_>>()?;
        layouts::permute(old, &dims)
    }

    fn transpose(&self, id: NodeId, old: &Layout) -> Option<Layout> {
        let rank = old.shape.len();
        let args = self.graph.args_of(id);
        if rank < 2 {
            // `t(x)`, which names no dimensions.
            return (args.positional.len() + args.keyword.len() == 1).then(|| old.clone());
        }
        let dim = |at: usize, name: &str, default: i64| wrap(self.int_or(id, args.at(at, name), default)?, rank);
        let (a, b) = (dim(1, "dim0", 0)?, dim(2, "dim1", 1)?);
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(a, b);
        layouts::permute(old, &order)
    }

    fn slice(&self, id: NodeId, old: &Layout, kind: ViewKind) -> Option<(Layout, u64)> {
        let graph = self.graph;
        let Op::Call(target) = graph.node(id).op else { return None };
        let args = graph.args_of(id);
        // The native text writes `slice(x, start, end, dim=d)`, ATen `slice(x, d, start, end)`.
        let native = graph.operator(target).namespace().is_empty() && kind == ViewKind::Slice;
        let dim = if native { args.get("dim") } else { args.at(1, "dim") };
        let dim = wrap(self.int_or(id, dim, 0)?, old.shape.len())?;
        let size = i64::try_from(old.shape[dim]).ok()?;
        let shift = usize::from(!native);
        if kind == ViewKind::Narrow {
            let (start, length) = (self.int(id, args.at(2, "start")?)?, self.int(id, args.at(3, "length")?)?);
            let start = if start < 0 { start + size } else { start };
            return layouts::slice(old, dim, u64::try_from(start).ok()?, u64::try_from(length).ok()?, 1);
        }
        let bound = |at: usize, name: &str, default: i64| {
            let at = self.int_or(id, args.at(at + shift, name), default)?;
            Some((if at < 0 { at.saturating_add(size) } else { at }).clamp(0, size))
        };
        let (start, end) = (bound(1, "start", 0)?, bound(2, "end", i64::MAX)?);
        let step = u64::try_from(self.int_or(id, args.at(3 + shift, "step"), 1)?).ok().filter(|&step| step > 0)?;
        let length = u64::try_from((end - start).max(0)).ok()?.div_ceil(step);
        layouts::slice(old, dim, u64::try_from(start).ok()?, length, step)
    }

    fn select(&self, id: NodeId, old: &Layout, dim: Option<&Arg>, index: &Arg) -> Option<(Layout, u64)> {
        let dim = wrap(self.int_or(id, dim, 0)?, old.shape.len())?;
        let index = wrap(self.int(id, index)?, usize::try_from(old.shape[dim]).ok()?)?;
        layouts::select(old, dim, index as u64)
    }

    fn squeeze(&self, id: NodeId, old: &Layout) -> Option<Layout> {
        let rank = old.shape.len();
        let args = self.graph.args_of(id);
        let dims = match args.at(1, "dim").or_else(|| args.get("dimensions")) {
            None => return Some(layouts::squeeze(old, &|_| true)),
            arg => self.ints(id, arg)?,
        };
        let dims: Vec<usize> = dims.into_iter().map(|dim| wrap(dim, rank)).collect::<Option<_>>()?;
        Some(layouts::squeeze(old, &|dim| dims.contains(&dim)))
    }

    fn split(&mut self, id: NodeId, from: View, old: &Layout, kind: ViewKind) -> Option<Value> {
        let args = self.graph.args_of(id);
        let dim_at = if kind == ViewKind::Unbind { 1 } else { 2 };
        let dim = wrap(self.int_or(id, args.at(dim_at, "dim"), 0)?, old.shape.len())?;
        let total = old.shape[dim];
        if kind == ViewKind::Unbind {
            let parts: Option<Vec<(Layout, u64)>> = (0..total).map(|at| layouts::select(old, dim, at)).collect();
            return self.parts(from, parts?);
        }
        let asked = args
            .at(1, if kind == ViewKind::Chunk { "chunks" } else { "split_size" })
            .or_else(|| args.get("split_sizes"));
        let listed = matches!(asked, Some(Arg::List(_) | Arg::Tuple(_)));
        let numbers = self.ints(id, asked)?;
        let sizes: Vec<u64> = if listed {
            numbers.into_iter().map(|size| u64::try_from(size).ok()).collect::<Option<_>>()?
        } else {
            let number = u64::try_from(*numbers.first()?).ok()?;
            let part = if kind == ViewKind::Chunk { total.div_ceil(number.max(1)).max(1) } else { number };
            if part == 0 || total / part > u64::from(u32::MAX) {
                return None;
            }
            let step = usize::try_from(part).ok()?;
            (0..total.max(1)).step_by(step).map(|start| part.min(total - start)).collect()
        };
        let mut start = 0u64;
        let mut parts = Vec::with_capacity(sizes.len());
        for size in sizes {
            parts.push(layouts::slice(old, dim, start, size, 1)?);
            start = start.checked_add(size)?;
        }
        (start == total).then(|| self.parts(from, parts))?
    }

    fn parts(&mut self, from: View, parts: Vec<(Layout, u64)>) -> Option<Value> {
        let views: Option<Vec<Value>> =
            parts.into_iter().map(|(layout, skip)| self.build.moved(from, layout, skip).map(Value::Tensor)).collect();
        views.map(|views| self.tuple(views))
    }
}

/// Counts from the end if negative; `None` beyond the bounds.
pub(super) fn wrap(index: i64, size: usize) -> Option<usize> {
    let size_int = i64::try_from(size).ok()?;
    usize::try_from(if index < 0 { index + size_int } else { index }).ok().filter(|&at| at < size)
}
