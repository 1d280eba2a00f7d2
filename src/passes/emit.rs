//! Makes the nodes that a rewrite adds: plain ATen operators with right types, named like those around them.

use crate::ir::{
    Arg, Args, CollectiveKind, DType, Dim, Dims, Graph, Name, NodeId, Op, RegionId, SymExpr, TensorType, Type,
};
use indexmap::IndexMap;

/// Adds nodes to a graph, and collects them in order.
pub(super) struct Emitter<'a> {
    pub graph: &'a mut Graph,
    /// The new program order so far.
    pub order: Vec<NodeId>,
    /// Region of the nodes being made.
    pub region: RegionId,
    /// Next number to try for each stem.
    numbers: IndexMap<&'static str, u32>,
}

/// A shape, with the tensor that gives the sizes that are only known at run time.
#[derive(Clone)]
pub(super) struct Shape {
    pub dims: Dims,
    /// A tensor, and for each dimension of the shape the dimension of that tensor from which it follows, and how.
    pub from: (NodeId, Vec<(usize, Scale)>),
}

/// How a size follows from another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Same,
    Times(u64),
    Over(u64),
}

/// Keeps new names off the first words of targets and of dotted arguments: a value named `mul` would hide what
/// `mul.forward` calls.
fn reserve_first_words(graph: &mut Graph) {
    let (mut targets, mut args) = (Seen::default(), Seen::default());
    let mut words = Vec::new();
    for &id in graph.order() {
        let node = graph.node(id);
        if let Op::Call(target) = node.op
            && targets.is_new(target.index())
        {
            words.push(first_word(graph.text(target)));
        }
        if args.is_new(node.args.index()) {
            graph.args_of(id).for_each_word(&mut |word| words.push(first_word(word)));
        }
    }
    for word in words {
        graph.intern(&word);
    }
}

fn first_word(dotted: &str) -> Box<str> {
    dotted.split('.').next().unwrap_or_default().into()
}

/// Small numbers that were met.
#[derive(Default)]
struct Seen(Vec<bool>);

impl Seen {
    fn is_new(&mut self, number: usize) -> bool {
        if self.0.len() <= number {
            self.0.resize((number + 1).next_power_of_two(), false);
        }
        !std::mem::replace(&mut self.0[number], true)
    }
}

impl<'a> Emitter<'a> {
    pub fn new(graph: &'a mut Graph, capacity: usize) -> Self {
        reserve_first_words(graph);
        Self { graph, order: Vec::with_capacity(capacity), region: RegionId::ROOT, numbers: IndexMap::new() }
    }

    fn name(&mut self, stem: &'static str) -> Name {
        let next = self.numbers.entry(stem).or_insert(0);
        self.graph.fresh_name(stem, next)
    }

    /// Makes a node and puts it next in order.
    pub fn node(&mut self, op: Op, stem: &'static str, ty: Type, args: Args, operands: &[NodeId]) -> NodeId {
        let name = self.name(stem);
        let ty = self.graph.intern_type(ty);
        let args = self.graph.intern_args(args);
        let id = self.graph.create(op, name, ty, args, operands);
        self.graph.node_mut(id).region = self.region;
        self.order.push(id);
        id
    }

    /// Makes a call of an ATen operator.
    pub fn call(&mut self, target: &str, stem: &'static str, ty: Type, args: Args, operands: &[NodeId]) -> NodeId {
        let target = self.graph.intern(target);
        self.node(Op::Call(target), stem, ty, args, operands)
    }

    /// Turns a node into a call under the name and type it has, and puts it next in order.
    pub fn become_call(&mut self, id: NodeId, target: &str, args: Args, operands: &[NodeId]) {
        let target = self.graph.intern(target);
        let args = self.graph.intern_args(args);
        self.graph.set_operands(id, operands);
        let node = self.graph.node_mut(id);
        node.op = Op::Call(target);
        node.args = args;
        self.order.push(id);
    }

    /// The type of a tensor.
    pub fn tensor(&self, id: NodeId) -> TensorType {
        self.graph.tensor(id).cloned().expect("candidates and what is made from them are tensors")
    }

    /// The sizes of `shape` as a list argument; sizes known only at run time are read from the tensor they follow from.
    fn sizes(&mut self, shape: &Shape, operands: &mut Vec<NodeId>) -> Arg {
        let symbolic = shape.dims.iter().filter(|dim| dim.as_const().is_none()).count();
        let others_are_positive = shape.dims.iter().all(|dim| dim.as_const() != Some(0));
        let mut items = Vec::with_capacity(shape.dims.len());
        for (index, dim) in shape.dims.iter().enumerate() {
            let item = match dim {
                Dim::Const(value) => Arg::Int(i64::try_from(*value).unwrap_or(i64::MAX)),
                Dim::Sym(_) if symbolic == 1 && others_are_positive => Arg::Int(-1),
                Dim::Sym(_) => {
                    let (source_dim, scale) = shape.from.1[index];
                    let size = self.size_of(shape.from.0, source_dim, scale);
                    operands.push(size);
                    Arg::Operand(operands.len() as u32 - 1)
                }
            };
            items.push(item);
        }
        Arg::List(items)
    }

    /// A size of a tensor, scaled, as a value.
    fn size_of(&mut self, tensor: NodeId, dim: usize, scale: Scale) -> NodeId {
        let expr = self.tensor(tensor).shape[dim].to_expr().unwrap_or_default();
        let args = Args::positional(vec![Arg::Operand(0), Arg::Int(dim as i64)]);
        let size = self.call("aten.sym_size.int", "sym_size_int", Type::SymInt(expr.clone()), args, &[tensor]);
        self.scaled(size, &expr, scale)
    }

    /// A symbolic integer, multiplied or divided.
    fn scaled(&mut self, size: NodeId, expr: &SymExpr, scale: Scale) -> NodeId {
        let (by, target, stem, result) = match scale {
            Scale::Same | Scale::Times(1) | Scale::Over(1) => return size,
            Scale::Times(by) => (by, "operator.mul", "mul", expr.checked_mul(&SymExpr::constant(by as i64))),
            Scale::Over(by) => (by, "operator.floordiv", "floordiv", expr.divide_exactly(by as i64)),
        };
        let args = Args::positional(vec![Arg::Operand(0), Arg::Int(by as i64)]);
        self.call(target, stem, result.map_or(Type::Unknown, Type::SymInt), args, &[size])
    }

    /// The number of elements of a tensor over `divisor`, as an argument: a number, or a value added to `operands`.
    /// `elements` is the quotient.
    pub fn count(&mut self, tensor: NodeId, elements: &Dim, divisor: u64, operands: &mut Vec<NodeId>) -> Arg {
        let Dim::Sym(expr) = elements else {
            let count = elements.as_const().and_then(|count| i64::try_from(count).ok());
            return Arg::Int(count.unwrap_or(i64::MAX));
        };
        let whole = expr.checked_mul(&SymExpr::constant(divisor as i64)).unwrap_or_default();
        let args = Args::positional(vec![Arg::Operand(0)]);
        let count = self.call("aten.sym_numel.default", "sym_numel", Type::SymInt(whole.clone()), args, &[tensor]);
        operands.push(self.scaled(count, &whole, Scale::Over(divisor)));
        Arg::Operand(operands.len() as u32 - 1)
    }

    /// `tensor` in another shape, dense: a view where it lies dense, else of a copy; itself where nothing changes.
    pub fn reshape(&mut self, mut tensor: NodeId, shape: &Shape) -> NodeId {
        let mut from = self.tensor(tensor);
        if !from.is_dense() {
            // Reshaping may find a view with strides, which what follows cannot take.
            tensor = self.clone(tensor);
            from = self.tensor(tensor);
        }
        if from.shape == shape.dims {
            return tensor;
        }
        let (target, stem) = reshape_target(&from);
        let mut operands = vec![tensor];
        let sizes = self.sizes(shape, &mut operands);
        let ty = Type::Tensor(from.with_shape(shape.dims.clone()));
        self.call(target, stem, ty, Args::positional(vec![Arg::Operand(0), sizes]), &operands)
    }

    /// A table whose rows are dense, each row taken apart into the inner dimensions of `shape`: always a view.
    pub fn stack(&mut self, table: NodeId, shape: &Shape) -> NodeId {
        let from = self.tensor(table);
        let mut ty = TensorType { strides: None, ..from.with_shape(shape.dims.clone()) };
        let step = from.strides.as_ref().and_then(|strides| strides.first().cloned());
        ty.strides = ty.dense_strides();
        if let (Some(strides), Some(step)) = (&mut ty.strides, step) {
            strides[0] = step;
        }
        let mut operands = vec![table];
        let sizes = self.sizes(shape, &mut operands);
        let args = Args::positional(vec![Arg::Operand(0), sizes]);
        self.call("aten.view.default", "view", Type::Tensor(ty), args, &operands)
    }

    /// Gives `id` the value of `tensor` in the shape that `id` has.
    pub fn become_reshape(&mut self, id: NodeId, tensor: NodeId, shape: &Shape) {
        let (target, _) = reshape_target(&self.tensor(tensor));
        let mut operands = vec![tensor];
        let sizes = self.sizes(shape, &mut operands);
        self.become_call(id, target, Args::positional(vec![Arg::Operand(0), sizes]), &operands);
    }

    /// A dense copy.
    pub fn clone(&mut self, tensor: NodeId) -> NodeId {
        let from = self.tensor(tensor);
        let ty = Type::Tensor(from.with_shape(from.shape.clone()));
        self.call("aten.clone.default", "clone", ty, clone_args(&from), &[tensor])
    }

    /// Gives `id` a dense copy of `tensor`.
    pub fn become_clone(&mut self, id: NodeId, tensor: NodeId) {
        let args = clone_args(&self.tensor(tensor));
        self.become_call(id, "aten.clone.default", args, &[tensor]);
    }

    /// The same bytes as elements of another dtype; `tensor` must be dense along its last dimension.
    pub fn bit_cast(&mut self, tensor: NodeId, dtype: DType) -> NodeId {
        let mut ty = self.tensor(tensor);
        if ty.dtype == dtype {
            return tensor;
        }
        let (from, to) = (ty.dtype.bytes(), dtype.bytes());
        let last = ty.shape.last_mut().expect("packed tensors have a dimension");
        *last = last.checked_mul(&Dim::Const(from)).and_then(|bytes| bytes.divide_exactly(to)).unwrap_or(Dim::Const(0));
        ty.dtype = dtype;
        let ty = ty.with_shape(ty.shape.clone());
        let args = Args::positional(vec![Arg::Operand(0), Arg::DType(dtype)]);
        self.call("aten.view.dtype", "view", Type::Tensor(ty), args, &[tensor])
    }

    /// `tensor` with its dimensions in another order.
    pub fn permute(&mut self, tensor: NodeId, dims: &[usize]) -> NodeId {
        let from = self.tensor(tensor);
        let pick = |list: &Dims| dims.iter().map(|&dim| list[dim].clone()).collect::<Dims>();
        let strides = from.strides.clone().or_else(|| from.dense_strides());
        let ty = TensorType { shape: pick(&from.shape), strides: strides.as_ref().map(pick), ..from };
        let order = Arg::List(dims.iter().map(|&dim| Arg::Int(dim as i64)).collect());
        let args = Args::positional(vec![Arg::Operand(0), order]);
        self.call("aten.permute.default", "permute", Type::Tensor(ty), args, &[tensor])
    }

    /// Tensors put together along a dimension.
    pub fn cat(&mut self, parts: &[NodeId], dim: usize, ty: TensorType) -> NodeId {
        let list = Arg::List((0..parts.len() as u32).map(Arg::Operand).collect());
        let positional = if dim == 0 { vec![list] } else { vec![list, Arg::Int(dim as i64)] };
        self.call("aten.cat.default", "cat", Type::Tensor(ty), Args::positional(positional), parts)
    }

    /// A new tensor of zeros.
    pub fn zeros(&mut self, ty: TensorType) -> NodeId {
        let args = zeros_args(&ty);
        self.call("aten.full.default", "full", Type::Tensor(ty), args, &[])
    }

    /// Gives `id` the empty tensor of its type.
    pub fn become_empty(&mut self, id: NodeId) {
        let args = zeros_args(&self.tensor(id));
        self.become_call(id, "aten.full.default", args, &[]);
    }

    /// Element `index` of a tuple.
    pub fn get_item(&mut self, tuple: NodeId, index: usize, ty: TensorType) -> NodeId {
        self.call("operator.getitem", "getitem", Type::Tensor(ty), item_args(index), &[tuple])
    }

    /// Gives `id` element `index` of a tuple.
    pub fn become_item(&mut self, id: NodeId, tuple: NodeId, index: usize) {
        self.become_call(id, "operator.getitem", item_args(index), &[tuple]);
    }
}

/// The stem of the names that a merged collective and its wait get.
pub(super) const fn stems(kind: CollectiveKind) -> (&'static str, &'static str) {
    match kind {
        CollectiveKind::AllGather { .. } => ("bucketed_all_gather", "bucketed_all_gather_wait"),
        CollectiveKind::ReduceScatter { .. } => ("bucketed_reduce_scatter", "bucketed_reduce_scatter_wait"),
        CollectiveKind::AllReduce { .. } => ("bucketed_all_reduce", "bucketed_all_reduce_wait"),
        CollectiveKind::AllToAll => ("bucketed_all_to_all", "bucketed_all_to_all_wait"),
        CollectiveKind::Permute => ("bucketed_permute", "bucketed_permute_wait"),
        _ => ("bucketed_broadcast", "bucketed_broadcast_wait"),
    }
}

fn reshape_target(from: &TensorType) -> (&'static str, &'static str) {
    if from.strides.is_some() && from.is_dense() {
        ("aten.view.default", "view")
    } else {
        ("aten.reshape.default", "reshape")
    }
}

fn item_args(index: usize) -> Args {
    Args::positional(vec![Arg::Operand(0), Arg::Int(index as i64)])
}

fn clone_args(from: &TensorType) -> Args {
    let mut args = Args::positional(vec![Arg::Operand(0)]);
    if !(from.strides.is_some() && from.is_dense()) {
        args.keyword.push(("memory_format".into(), Arg::Word("torch.contiguous_format".into())));
    }
    args
}

fn zeros_args(ty: &TensorType) -> Args {
    let sizes = ty.shape.iter().map(|dim| Arg::Int(dim.as_const().and_then(|d| i64::try_from(d).ok()).unwrap_or(0)));
    let zero = match ty.dtype {
        DType::Bool => Arg::Bool(false),
        _ => Arg::Int(0),
    };
    let mut keyword: Vec<(Box<str>, Arg)> =
        vec![("dtype".into(), Arg::DType(ty.dtype)), ("layout".into(), Arg::Word("torch.strided".into()))];
    if let Some(device) = &ty.device {
        keyword.push(("device".into(), device_arg(device)));
    }
    keyword.push(("pin_memory".into(), Arg::Bool(false)));
    Args { positional: vec![Arg::List(sizes.collect()), zero], keyword }
}

fn device_arg(device: &str) -> Arg {
    let (kind, index) = device.split_once(':').map_or((device, None), |(kind, index)| (kind, index.parse().ok()));
    let mut keyword: Vec<(Box<str>, Arg)> = vec![("type".into(), Arg::Str(kind.into()))];
    if let Some(index) = index {
        keyword.push(("index".into(), Arg::Int(index)));
    }
    Arg::Apply("device".into(), Args { positional: vec![], keyword })
}
