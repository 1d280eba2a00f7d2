//! Steps that make inputs, calls and effects.

use super::{DTYPES, Grower, Value, pick};
use bucketeer::ir::operators::view_strides;
use bucketeer::ir::{Arg, Args, DType, Dim, Op, SymExpr, TensorType, Type};

impl Grower {
    pub(super) fn input(&mut self, dtype: DType, shape: &[u64], flavour: u16) {
        let mut tensor = TensorType::dense(dtype, shape);
        if flavour % 4 == 1 {
            tensor.strides = tensor.dense_strides();
            tensor.device = Some("cuda:0".into());
        }
        if flavour % 8 == 2 {
            tensor.device = Some("cpu".into());
        }
        let id = self.node(Op::Input, "x", Args::default(), &[], Some(Type::Tensor(tensor)));
        self.fresh(id);
    }

    pub(super) fn symbolic_input(&mut self, a: u16, b: u16) {
        let s = |times: i64| {
            let expr = SymExpr::atom("s").checked_mul(&SymExpr::constant(times)).expect("small");
            Dim::from_expr(expr).expect("not negative")
        };
        let shape = match a % 4 {
            0 => vec![s(4)],
            1 => vec![s(4), Dim::Const(3)],
            2 => vec![Dim::Const(2), s(1)],
            _ => vec![s(1), s(2)],
        };
        let mut tensor = TensorType::dense(DTYPES[usize::from(b) % DTYPES.len()], &[]);
        tensor.shape = shape.into_iter().collect();
        self.graph.hints.insert("s".into(), 2);
        let id = self.node(Op::Input, "x", Args::default(), &[], Some(Type::Tensor(tensor)));
        self.fresh(id);
    }

    /// Reads a size, of a value in flight, too.
    pub(super) fn shape_reader(&mut self, a: u16, b: u16) {
        let here: Vec<_> = self.values.iter().filter(|value| self.path.contains(&value.region)).cloned().collect();
        let pending = self.pending();
        let from = if pending.is_empty() || a.is_multiple_of(4) { here } else { pending };
        let Some(x) = pick(&from, a) else { return };
        let Some(tensor) = self.graph.tensor(x.id).cloned() else { return };
        let (target, rest, size) = match pick(&tensor.shape, b) {
            Some(size) if !b.is_multiple_of(5) => {
                let dim = usize::from(b) % tensor.shape.len();
                ("aten.sym_size.int", vec![Arg::Int(dim as i64)], Some(size))
            }
            _ => ("aten.sym_numel.default", vec![], tensor.elements()),
        };
        let Some(size) = size.and_then(|size| size.to_expr()) else { return };
        let id = self.call(target, rest, &[x.id], Some(Type::SymInt(size)));
        let storage = self.storage(false, Vec::new());
        self.sizes.push(Value { id, storage, region: self.region(), read: false });
    }

    pub(super) fn pointwise(&mut self, a: u16, b: u16, c: u16) {
        let Some(x) = self.any(a) else { return };
        let ty = self.tensor(&x);
        let same: Vec<_> = self.readable().into_iter().filter(|y| self.tensor(y) == ty).collect();
        let id = match (c % 4, pick(&same, b)) {
            (0, _) | (_, None) => self.call(["neg", "relu", "sin"][usize::from(b) % 3], vec![], &[x.id], None),
            (1, _) => self.call("mul", vec![Arg::Float("2.0".into())], &[x.id], None),
            (2, Some(y)) => self.call("cdist", vec![Arg::Int(i64::from(b % 3))], &[x.id, y.id], Some(Type::Tensor(ty))),
            (_, Some(y)) => self.call("add", vec![], &[x.id, y.id], None),
        };
        self.fresh(id);
    }

    pub(super) fn cast(&mut self, a: u16, b: u16) {
        let Some(x) = self.any(a) else { return };
        let id = self.call("cast", vec![Arg::DType(DTYPES[usize::from(b) % DTYPES.len()])], &[x.id], None);
        self.fresh(id);
    }

    pub(super) fn view(&mut self, a: u16, b: u16) {
        // Views of pending values, too.
        let here: Vec<_> = self.values.iter().filter(|value| self.path.contains(&value.region)).cloned().collect();
        let Some(x) = pick(&here, a) else { return };
        if let (0, Some(rows)) = (b % 2, self.tensor(&x).shape.first().and_then(Dim::as_const)) {
            let id = self.call("slice", vec![Arg::Int(0), Arg::Int((rows / 2) as i64)], &[x.id], None);
            self.keep(id, x.storage);
        } else {
            self.flatten(&x);
        }
    }

    /// A view where strides allow one, else a copy, which must not read what is in flight. Where strides with symbols
    /// do not say which, it is left.
    fn flatten(&mut self, x: &Value) {
        let tensor = self.tensor(x);
        let Some(flat) = tensor.elements() else { return };
        let views = tensor.is_dense() || view_strides(&tensor, &[flat]).is_some();
        let dims = tensor.shape.iter().chain(tensor.strides.iter().flatten());
        if !views && (self.storages[x.storage].pending || dims.clone().any(|dim| dim.as_const().is_none())) {
            return;
        }
        let id = self.call("reshape", vec![Arg::List(vec![Arg::Int(-1)])], &[x.id], None);
        if views { self.keep(id, x.storage) } else { self.fresh(id) }
    }

    pub(super) fn transpose(&mut self, a: u16) {
        let Some(x) = self.any(a) else { return };
        if self.tensor(&x).shape.len() == 2 {
            let id = self.call("transpose", vec![], &[x.id], None);
            self.keep(id, x.storage);
        }
    }

    pub(super) fn write(&mut self, a: u16) {
        let Some(x) = self.writable(a) else { return };
        let id = self.call("mul_", vec![Arg::Int(3)], &[x.id], None);
        self.keep(id, x.storage);
    }

    pub(super) fn effect(&mut self, a: u16) {
        if a.is_multiple_of(2) {
            self.call("opaque_comm.barrier", vec![], &[], Some(Type::Unknown));
        } else {
            let Some(x) = self.any(a / 2) else { return };
            let ty = Type::Tensor(self.tensor(&x));
            let id = self.call("rand_like", vec![], &[x.id], Some(ty));
            self.fresh(id);
        }
    }
}
