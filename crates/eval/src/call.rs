//! One call on one rank: its arguments as values, and how its results are made.

use super::EvalOptions;
use super::memory::{NodeError, RankMemory};
use super::symbols::Symbols;
use super::tensor::{MAX_STRIDE, Tensor, dense_strides, is_injective};
use super::value::{Scalar, Value};
use bucketeer::ir::operators::Operator;
use bucketeer::ir::{Arg, Args, DType, Graph, NodeId, TensorType};
use std::sync::Arc;

/// What an operator family makes of a call: nothing, if the operator is none of its own.
pub type Done = Result<Option<Value>, NodeError>;

/// One rank's memory and values.
pub struct Rank {
    /// Its number among all ranks.
    pub global: u32,
    /// Its storages.
    pub memory: RankMemory,
    /// Values by arena index.
    pub values: Vec<Option<Value>>,
    /// How many random draws there were.
    pub draws: u64,
    /// How many calls that may talk to the world there were.
    pub fences: u64,
    /// How many calls made numbers of operators whose meaning is not known.
    pub unknown: u64,
}

/// A call being evaluated.
pub struct Call<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub id: NodeId,
    /// Its arguments.
    pub args: &'a Args,
    /// What it calls.
    pub operator: Operator<'a>,
    /// The rank it runs on.
    pub rank: &'a mut Rank,
    /// Values of symbols.
    pub symbols: &'a Symbols,
    /// What the graph is run with.
    pub options: &'a EvalOptions,
}

/// How a new tensor lies in memory.
#[derive(Clone, Copy, Debug)]
pub enum Layout<'a> {
    /// End to end.
    Dense,
    /// As the node's type states, else with these strides.
    Stated(&'a [usize]),
}

impl<'a> Call<'a> {
    /// The call that a node makes on a rank.
    #[must_use]
    pub fn new(
        graph: &'a Graph,
        id: NodeId,
        rank: &'a mut Rank,
        symbols: &'a Symbols,
        options: &'a EvalOptions,
    ) -> Self {
        Self { graph, id, args: graph.args_of(id), operator: graph.operator_of(id), rank, symbols, options }
    }

    /// Whether the native text calls it so, where some operators take other arguments.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.operator.namespace().is_empty()
    }

    /// The argument at `position` or under one of the names.
    #[must_use]
    pub fn arg(&self, position: usize, names: &[&str]) -> Option<&'a Arg> {
        let args = self.args;
        let found = args.positional.get(position).or_else(|| names.iter().find_map(|name| args.get(name)));
        found.filter(|arg| **arg != Arg::None)
    }

    /// The node of an operand.
    #[must_use]
    pub fn operand(&self, index: u32) -> Option<NodeId> {
        self.graph.operands(self.id).get(index as usize).copied()
    }

    /// The value of a node.
    ///
    /// # Errors
    /// When it has none yet.
    pub fn value_of(&self, id: NodeId) -> Result<&Value, NodeError> {
        self.rank.values[id.index()]
            .as_ref()
            .ok_or_else(|| NodeError::misfit(format!("`{}` has no value here", self.graph.name_of(id))))
    }

    /// The value of an argument; lists become tuples.
    ///
    /// # Errors
    /// When it is not a value.
    pub fn value(&self, arg: &Arg) -> Result<Value, NodeError> {
        match arg {
            Arg::Operand(index) => {
                let id = self.operand(*index).ok_or_else(|| NodeError::misfit("an argument names no operand"))?;
                self.value_of(id).cloned()
            }
            Arg::List(items) | Arg::Tuple(items) => {
                items.iter().map(|item| self.value(item)).collect::<Result<_, _>>().map(Value::Tuple)
            }
            _ => literal(arg).map(Value::Scalar).ok_or_else(|| NodeError::misfit("an argument is not a number")),
        }
    }

    /// A tensor argument, if it is given.
    ///
    /// # Errors
    /// When it is something else.
    pub fn tensor_arg(&self, arg: Option<&Arg>) -> Result<Option<Tensor>, NodeError> {
        let Some(arg @ Arg::Operand(index)) = arg else { return Ok(None) };
        match self.value(arg)? {
            Value::Tensor(tensor) => Ok(Some(tensor)),
            Value::Opaque(_) => Err(self.operand(*index).map_or(NodeError::misfit("no operand"), NodeError::Unknown)),
            Value::Tuple(_) | Value::Scalar(_) => Ok(None),
        }
    }

    /// The first argument as a tensor, if it is one.
    ///
    /// # Errors
    /// When its type is not known.
    pub fn first(&self) -> Result<Option<Tensor>, NodeError> {
        self.tensor_arg(self.arg(0, &["self", "input", "a", "x"]))
    }

    /// A list of tensors.
    ///
    /// # Errors
    /// When it is something else.
    pub fn tensors(&self, arg: Option<&Arg>) -> Result<Vec<Tensor>, NodeError> {
        let value = arg.map(|arg| self.value(arg)).transpose()?;
        let values = match value {
            Some(Value::Tuple(values)) => values,
            Some(value) => vec![value],
            None => return Err(NodeError::misfit("a list of tensors is missing")),
        };
        let tensor = |value| match value {
            Value::Tensor(tensor) => Ok(tensor),
            _ => Err(NodeError::misfit("a list of tensors holds something else")),
        };
        values.into_iter().map(tensor).collect()
    }

    /// An integer argument, if it is given.
    ///
    /// # Errors
    /// When it is something else.
    pub fn int_arg(&self, arg: Option<&Arg>) -> Result<Option<i64>, NodeError> {
        let Some(arg) = arg else { return Ok(None) };
        match self.value(arg)? {
            Value::Scalar(Scalar::Int(value)) => Ok(Some(value)),
            Value::Scalar(Scalar::Bool(value)) => Ok(Some(i64::from(value))),
            _ => Err(NodeError::misfit("expected an integer")),
        }
    }

    /// The integer at a place, or a default.
    ///
    /// # Errors
    /// When it is something else.
    pub fn int(&self, position: usize, name: &str, default: i64) -> Result<i64, NodeError> {
        Ok(self.int_arg(self.arg(position, &[name]))?.unwrap_or(default))
    }

    /// The integers at a place: a list, or one.
    ///
    /// # Errors
    /// When they are something else or missing.
    pub fn ints_arg(&self, arg: Option<&Arg>) -> Result<Vec<i64>, NodeError> {
        match arg {
            Some(Arg::List(items) | Arg::Tuple(items)) => items
                .iter()
                .map(|item| self.int_arg(Some(item))?.ok_or_else(|| NodeError::misfit("expected an integer")))
                .collect(),
            Some(arg) => Ok(self.int_arg(Some(arg))?.into_iter().collect()),
            None => Err(NodeError::misfit("a list of integers is missing")),
        }
    }

    /// Sizes: integers that are not negative.
    ///
    /// # Errors
    /// When they are something else or missing.
    pub fn sizes_arg(&self, arg: Option<&Arg>) -> Result<Vec<usize>, NodeError> {
        let size = |size| {
            let size: usize = usize::try_from(size).map_err(|_| NodeError::misfit(format!("{size} is not a size")))?;
            if size > MAX_STRIDE { Err(NodeError::misfit(format!("{size} is too large"))) } else { Ok(size) }
        };
        self.ints_arg(arg)?.into_iter().map(size).collect()
    }

    /// A dimension of a tensor of `rank` dimensions, or a default.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn dim(&self, position: usize, name: &str, default: i64, rank: usize) -> Result<usize, NodeError> {
        wrap_dim(self.int(position, name, default)?, rank)
    }

    /// A dtype argument, if it is given.
    #[must_use]
    pub fn dtype(&self, position: usize) -> Option<DType> {
        match self.arg(position, &["dtype"]) {
            Some(Arg::DType(dtype)) => Some(*dtype),
            _ => None,
        }
    }

    /// What the graph says the result is, if it is a tensor.
    #[must_use]
    pub fn stated(&self) -> Option<&'a TensorType> {
        self.graph.type_of(self.id).as_tensor()
    }

    /// The strides that the graph states, if they belong to these sizes and are to be followed.
    #[must_use]
    pub fn stated_strides(&self, sizes: &[usize]) -> Option<Vec<usize>> {
        if self.options.laid_out.contains(self.graph.name_of(self.id)) {
            return None;
        }
        let stated = self.stated()?;
        let strides = self.symbols.sizes(stated.strides.as_deref()?)?;
        let fits = self.symbols.sizes(&stated.shape)? == sizes && is_injective(sizes, &strides);
        fits.then_some(strides)
    }

    /// A new tensor with these elements, in logical order.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn make(&mut self, dtype: DType, sizes: &[usize], layout: Layout<'_>, bytes: Vec<u8>) -> Done {
        let strides = match layout {
            Layout::Dense => dense_strides(sizes),
            Layout::Stated(strides) => self.stated_strides(sizes).unwrap_or_else(|| strides.to_vec()),
        };
        let device = self.device();
        let memory = &mut self.rank.memory;
        let mut tensor = if strides == dense_strides(sizes) {
            memory.dense(dtype, sizes, bytes)?
        } else {
            memory.strided(dtype, sizes, &strides, &bytes)?
        };
        tensor.device = device;
        Ok(Some(Value::Tensor(tensor)))
    }

    /// Where a new tensor is: as asked for, else where the operands are, else as stated.
    fn device(&self) -> Option<Arc<str>> {
        let stated = self.stated().and_then(|ty| ty.device.clone());
        let asked = self.args.get("device").and_then(device_name);
        let found = asked.or_else(|| {
            let mut devices: Vec<(bool, Arc<str>)> = Vec::new();
            for &id in self.graph.operands(self.id) {
                if let Some(value) = &self.rank.values[id.index()] {
                    value.for_each_tensor(&mut |tensor| {
                        devices.extend(tensor.device.clone().map(|device| (tensor.sizes.is_empty(), device)));
                    });
                }
            }
            // Single elements follow the others.
            devices.sort_by_key(|(single, _)| *single);
            devices.into_iter().next().map(|(_, device)| device)
        });
        match (found, stated) {
            // `cuda` is the current one of them.
            (Some(found), Some(stated)) if stated.starts_with(&*found) => Some(stated),
            (found, stated) => found.or(stated),
        }
    }

    /// Reads a tensor's elements.
    ///
    /// # Errors
    /// When some are in flight.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<u8>, NodeError> {
        self.rank.memory.read(tensor)
    }
}

/// A dimension counted from the front.
///
/// # Errors
/// When there is no such dimension.
pub fn wrap_dim(dim: i64, rank: usize) -> Result<usize, NodeError> {
    let count = rank.max(1) as i64;
    let wrapped = if dim < 0 { dim.saturating_add(count) } else { dim };
    match usize::try_from(wrapped) {
        Ok(at) if wrapped < count => Ok(at),
        _ => Err(NodeError::misfit(format!("there is no dimension {dim} of {rank}"))),
    }
}

/// A number as it stands in an argument.
#[must_use]
pub fn literal(arg: &Arg) -> Option<Scalar> {
    match arg {
        Arg::Int(value) => Some(Scalar::Int(*value)),
        Arg::Bool(value) => Some(Scalar::Bool(*value)),
        Arg::Float(text) | Arg::Word(text) => {
            let (sign, text) = text.strip_prefix('-').map_or((1.0, &**text), |rest| (-1.0, rest));
            let text = text.rsplit_once('.').map_or(text, |(head, name)| match head {
                "math" | "torch" => name,
                _ => text,
            });
            text.parse::<f64>().ok().map(|value| Scalar::Float(sign * value))
        }
        _ => None,
    }
}

fn device_name(arg: &Arg) -> Option<Arc<str>> {
    match arg {
        Arg::Str(name) | Arg::Word(name) => Some(Arc::from(&**name)),
        Arg::Apply(_, args) => {
            let kind = args.at(0, "type")?.as_str()?;
            Some(match args.at(1, "index").and_then(Arg::as_int) {
                Some(index) => format!("{kind}:{index}").into(),
                None => kind.into(),
            })
        }
        _ => None,
    }
}
