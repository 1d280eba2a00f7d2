//! All ranks, node by node, in lockstep and program order.

mod called;

use super::call::{Call, Rank};
use super::dispatch::known;
use super::exchange::{Received, Sent, Splits};
use super::memory::{Flight, NodeError, RankMemory};
use super::mix::Mixer;
use super::step::Counters;
use super::symbols::Symbols;
use super::tensor::{Tensor, count, dense_strides, is_injective, same_layout};
use super::value::{Scalar, Value};
use super::world::World;
use super::{EvalError, EvalOptions, output, step};
use bucketeer::ir::operators::{Alias, Fence, effects};
use bucketeer::ir::{
    Arg, Collective, CollectiveKind, DType, Graph, NodeId, Op, RegionId, RegionKind, TensorType, Type, Variant,
};
use std::cell::OnceCell;

/// Runs a graph on all ranks.
pub struct Machine<'g> {
    graph: &'g Graph,
    options: &'g EvalOptions,
    symbols: Symbols,
    world: World,
    /// By index into the world's ranks.
    pub ranks: Vec<Rank>,
    /// By arena index: the last node that reads the value; `None` where values are kept to the end.
    last_use: Vec<Option<NodeId>>,
    seed: u64,
    /// Whether this runs calls by themselves. What is declared of their operators is not known then, and whoever runs them
    /// may run those without effects in any order: so none but known draws count.
    alone: bool,
}

impl<'g> Machine<'g> {
    /// A machine before its first node.
    pub fn new(graph: &'g Graph, options: &'g EvalOptions) -> Result<Self, EvalError> {
        let world = World::of(graph, options)?;
        let symbols = Symbols::of(graph, options);
        check_size(graph, options, &symbols, world.ranks.len())?;
        let rank = |&global: &u32| Rank {
            global,
            memory: RankMemory::new(options.max_bytes / world.ranks.len().max(1) as u64),
            values: vec![None; graph.arena_len()],
            draws: 0,
            fences: 0,
            unknown: 0,
        };
        let ranks = world.ranks.iter().map(rank).collect();
        let last_use = last_uses(graph);
        Ok(Self { graph, options, symbols, world, ranks, last_use, seed: options.seed, alone: false })
    }

    /// Runs all nodes.
    pub fn run(&mut self) -> Result<(), EvalError> {
        self.range(0, self.graph.order().len(), RegionId::ROOT)
    }

    /// Runs the nodes at these places. Loops run twice, which is enough for what one turn leaves to the next; branches
    /// run.
    fn range(&mut self, from: usize, to: usize, region: RegionId) -> Result<(), EvalError> {
        let order = self.graph.order();
        let mut at = from;
        while at < to {
            let mut inner = self.graph.node(order[at]).region;
            if inner == region {
                self.node(order[at])?;
                at += 1;
                continue;
            }
            while self.graph.region(inner).parent != region && inner != RegionId::ROOT {
                inner = self.graph.region(inner).parent;
            }
            let length = order[at..to].iter().take_while(|id| self.graph.encloses(inner, self.graph.node(**id).region));
            let end = at + length.count().max(1);
            let turns = if self.graph.region(inner).kind == RegionKind::Loop { 2 } else { 1 };
            for _ in 0..turns {
                self.range(at, end, inner)?;
            }
            at = end;
        }
        Ok(())
    }

    fn node(&mut self, id: NodeId) -> Result<(), EvalError> {
        match self.graph.node(id).op {
            Op::Output => return Ok(()),
            Op::Call(_) if self.call_body(id)? => {}
            Op::Collective(collective) => self.collective(id, collective)?,
            Op::Input | Op::Wait | Op::Call(_) => {
                for rank in 0..self.ranks.len() {
                    let value = match self.graph.node(id).op {
                        Op::Input => self.input(id, rank),
                        Op::Wait => self.wait(id, rank),
                        _ => self.call(id, rank),
                    };
                    let value = value.map_err(|fault| self.error(id, Some(rank), fault))?;
                    self.set(id, rank, value)?;
                }
            }
        }
        self.forget(id);
        Ok(())
    }

    /// The error that a fault at a node is.
    pub fn error(&self, id: NodeId, rank: Option<usize>, fault: NodeError) -> EvalError {
        // What is in flight may have been launched by a graph that called this one, or that this one called.
        let known = |id: NodeId| self.graph.order().contains(&id);
        let name =
            |id: NodeId| if known(id) { self.graph.name_of(id) } else { "what another graph launched" }.to_owned();
        let node = name(id);
        let target = self.graph.target_of(id).to_owned();
        match fault {
            NodeError::ReadsPending(pending) => EvalError::ReadsPending { node, pending: name(pending) },
            NodeError::WritesPending(pending) => EvalError::WritesPending { node, pending: name(pending) },
            NodeError::Unknown(operand) => EvalError::UnknownType { node, operand: name(operand) },
            NodeError::Misfit(reason) => {
                let rank = rank.map_or(0, |rank| self.ranks[rank].global);
                EvalError::Misfit { node, target, rank, reason }
            }
            NodeError::TooLarge(most) => {
                EvalError::TooLarge { node: Some(node), most: most.saturating_mul(self.ranks.len() as u64) }
            }
            NodeError::Undefined(reason) => EvalError::Undefined { node, target, reason },
        }
    }

    // Values.

    fn set(&mut self, id: NodeId, rank: usize, value: Value) -> Result<(), EvalError> {
        let name = self.graph.name_of(id);
        let laid_out = self.options.laid_out.contains(name);
        if let Err(Clash { found, stated, only_strides }) = self.fits(self.graph.type_of(id), &value, laid_out) {
            let node = name.to_owned();
            return Err(EvalError::Type { node, found, stated, only_strides });
        }
        let rank = &mut self.ranks[rank];
        value.hold(&mut rank.memory);
        if let Some(old) = rank.values[id.index()].replace(value) {
            old.release(&mut rank.memory);
        }
        Ok(())
    }

    /// Drops the values that a node read last.
    fn forget(&mut self, id: NodeId) {
        let unread = self.last_use[id.index()] == Some(id);
        let operands = self.graph.operands(id).iter().copied();
        for value in operands.chain(unread.then_some(id)) {
            if self.last_use[value.index()] == Some(id) {
                for rank in &mut self.ranks {
                    if let Some(old) = rank.values[value.index()].take() {
                        old.release(&mut rank.memory);
                    }
                }
            }
        }
    }

    /// Whether a value is what its type says. Of one that is laid out, a type without strides says that it is dense.
    fn fits(&self, ty: &Type, value: &Value, laid_out: bool) -> Result<(), Clash> {
        match (ty, value) {
            (Type::Tensor(ty), Value::Tensor(tensor)) => self.tensor_fits(ty, tensor, laid_out),
            (Type::Tuple(types), Value::Tuple(values)) if types.len() == values.len() => {
                types.iter().zip(values).try_for_each(|(ty, value)| self.fits(ty, value, laid_out))
            }
            (Type::SymInt(expr), Value::Scalar(number)) => match self.symbols.expected(expr) {
                Some(expected) if expected != number.int() => {
                    Err(Clash::of(number.int().to_string(), format!("{ty}, which is {expected}")))
                }
                _ => Ok(()),
            },
            (Type::Tensor(_) | Type::Tuple(_), Value::Tuple(_) | Value::Scalar(_) | Value::Tensor(_)) => {
                Err(Clash::of(describe(value), ty.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn tensor_fits(&self, ty: &TensorType, tensor: &Tensor, laid_out: bool) -> Result<(), Clash> {
        let Some(sizes) = self.symbols.sizes(&ty.shape) else { return Ok(()) };
        let assumed = laid_out && ty.strides.is_none();
        let stated = ty.strides.as_deref().and_then(|strides| self.symbols.sizes(strides));
        let strides = if assumed { Some(dense_strides(&sizes)) } else { stated };
        let lies = strides.is_none_or(|strides| same_layout(&sizes, &strides, &tensor.strides));
        let same = ty.dtype == tensor.dtype && sizes == tensor.sizes;
        if same && lies {
            return Ok(());
        }
        let stated = if assumed { format!("{ty}, dense") } else { ty.to_string() };
        Err(Clash { only_strides: same, ..Clash::of(describe(&Value::Tensor(tensor.clone())), stated) })
    }

    // Inputs, waits, calls.

    fn input(&mut self, id: NodeId, rank: usize) -> Result<Value, NodeError> {
        let mut mixer = Mixer::new(self.seed, self.graph.name_of(id));
        mixer.number(u64::from(self.ranks[rank].global));
        let value = self.from_mixer(mixer, rank, self.graph.type_of(id))?;
        if self.options.raw_inputs {
            self.fill_with_bits(mixer, rank, &value)?;
        }
        if let (true, Value::Tensor(tensor)) = (self.graph.meta_of(id).pending, &value) {
            let memory = &mut self.ranks[rank].memory;
            let bytes = memory.read(tensor)?;
            let from = Tensor { sizes: vec![0], strides: vec![1], ..tensor.clone() };
            memory.launch(Flight { node: id, to: tensor.clone(), bytes, from })?;
        }
        Ok(value)
    }

    /// Overwrites tensors with any bits, each with its own.
    fn fill_with_bits(&mut self, mixer: Mixer, rank: usize, value: &Value) -> Result<(), NodeError> {
        let mut tensors = Vec::new();
        value.for_each_tensor(&mut |tensor| tensors.push(tensor.clone()));
        for (nth, tensor) in (0..).zip(tensors) {
            let part = Mixer::resume(mixer.at(nth));
            self.ranks[rank].memory.write(&tensor, &part.bits(tensor.width(), tensor.elements()))?;
        }
        Ok(())
    }

    fn wait(&mut self, id: NodeId, rank: usize) -> Result<Value, NodeError> {
        let mut values = Vec::new();
        for &operand in self.graph.operands(id) {
            let call = Call::new(self.graph, id, &mut self.ranks[rank], &self.symbols, self.options);
            let waited = call.value_of(operand)?.clone();
            let memory = &mut self.ranks[rank].memory;
            waited.for_each_tensor(&mut |tensor| memory.land(Some(tensor.storage)));
            values.push(waited);
        }
        if self.graph.waits_for_list(id) {
            return Ok(Value::Tuple(values));
        }
        values.into_iter().next().ok_or_else(|| NodeError::misfit("there is nothing to wait for"))
    }

    fn call(&mut self, id: NodeId, rank: usize) -> Result<Value, NodeError> {
        let graph = self.graph;
        let mut call = Call::new(graph, id, &mut self.ranks[rank], &self.symbols, self.options);
        if let Some(value) = known(&mut call)? {
            return Ok(value);
        }
        self.unknown(id, rank)
    }

    /// An operator of unknown meaning: its results, and what it writes, mix all it takes.
    fn unknown(&mut self, id: NodeId, rank: usize) -> Result<Value, NodeError> {
        let graph = self.graph;
        let effects = effects(graph, id);
        let state = &mut self.ranks[rank];
        let mut mixer = Mixer::new(0, graph.target_of(id));
        mixer.bytes(format!("{:?}", graph.args_of(id)).as_bytes());
        let counter = match effects.fence {
            Fence::Free => None,
            Fence::Random if self.alone && effects.assumed => None,
            Fence::Random => Some(&mut state.draws),
            Fence::Full => Some(&mut state.fences),
        };
        if let Some(counter) = counter {
            *counter += 1;
            mixer.number(*counter);
            mixer.number(self.seed);
            mixer.number(u64::from(state.global));
        }
        for &operand in graph.operands(id) {
            let call = Call::new(graph, id, &mut self.ranks[rank], &self.symbols, self.options);
            take_in(&mut mixer, &call.rank.memory, call.value_of(operand)?, effects.shape_only)?;
        }
        let mut written = self.mix_into_operands(id, rank, mixer, &effects.writes)?;
        let hands_on = matches!(effects.alias, Alias::Of(_));
        // An in-place operator hands on what it wrote.
        let value = match (written.len(), graph.type_of(id)) {
            (1, Type::Tensor(_) | Type::Unknown) if hands_on => written.remove(0),
            (count, Type::Tuple(types)) if types.len() == count => Value::Tuple(written),
            (_, ty) => self.from_mixer(mixer, rank, ty)?,
        };
        let makes_numbers = !effects.writes.is_empty() || !matches!(value, Value::Opaque(_));
        self.ranks[rank].unknown += u64::from(makes_numbers);
        Ok(value)
    }

    /// Overwrites operands with what a mixer makes, each tensor with elements of its own; returns what it wrote.
    fn mix_into_operands(
        &mut self,
        id: NodeId,
        rank: usize,
        mixer: Mixer,
        writes: &[u32],
    ) -> Result<Vec<Value>, NodeError> {
        let operands = self.graph.operands(id);
        let rank = &mut self.ranks[rank];
        let mut tensors = Vec::new();
        for operand in writes.iter().filter_map(|&index| operands.get(index as usize)) {
            let value = rank.values[operand.index()].clone();
            value.iter().for_each(|value| value.for_each_tensor(&mut |tensor| tensors.push(tensor.clone())));
        }
        for (nth, tensor) in tensors.iter().enumerate() {
            let mut part = mixer;
            part.number(nth as u64);
            let bytes = part.elements(tensor.dtype, tensor.elements(), self.options.integers);
            rank.memory.write(tensor, &bytes)?;
        }
        Ok(tensors.into_iter().map(Value::Tensor).collect())
    }

    #[expect(clippy::wrong_self_convention, reason = "a value from a mixer")]
    fn from_mixer(&mut self, mixer: Mixer, rank: usize, ty: &Type) -> Result<Value, NodeError> {
        Ok(match ty {
            Type::Tensor(ty) => Value::Tensor(self.tensor_from(mixer, rank, ty)?),
            Type::Tuple(types) => {
                let part = |(nth, ty)| self.from_mixer(Mixer::resume(mixer.at(nth as u64)), rank, ty);
                Value::Tuple(types.iter().enumerate().map(part).collect::<Result<_, _>>()?)
            }
            Type::SymInt(expr) => {
                let value = self.symbols.evaluate(expr);
                Value::Scalar(Scalar::Int(
                    value.ok_or_else(|| NodeError::Undefined(format!("size {expr} has no value")))?,
                ))
            }
            Type::SymOther(text) => {
                let seed = Mixer::new(self.seed, text).at(0);
                Value::Scalar(Scalar::Float((seed >> 44) as f64 / f64::from(1 << 18)))
            }
            // So that its elements are those of a tuple whose type is known.
            Type::Unknown | Type::Token => Value::Opaque(mixer.state()),
        })
    }

    fn tensor_from(&mut self, mixer: Mixer, rank: usize, ty: &TensorType) -> Result<Tensor, NodeError> {
        let undefined = || NodeError::Undefined(format!("the sizes of {ty} have no value"));
        let sizes = self.symbols.sizes(&ty.shape).ok_or_else(undefined)?;
        let memory = &mut self.ranks[rank].memory;
        memory.room(ty.dtype, count(&sizes))?;
        let bytes = mixer.elements(ty.dtype, count(&sizes), self.options.integers);
        let stated = ty.strides.as_deref().and_then(|strides| self.symbols.sizes(strides));
        let strides = stated.filter(|strides| strides.len() == sizes.len() && is_injective(&sizes, strides));
        let mut tensor = match strides {
            Some(strides) if strides != dense_strides(&sizes) => memory.strided(ty.dtype, &sizes, &strides, &bytes)?,
            _ => memory.dense(ty.dtype, &sizes, bytes)?,
        };
        tensor.device = ty.device.clone();
        Ok(tensor)
    }

    // Collectives.

    fn collective(&mut self, id: NodeId, collective: Collective) -> Result<(), EvalError> {
        let inputs = self.graph.collective_inputs(id).to_vec();
        let mut results: Vec<Vec<Value>> = vec![Vec::new(); self.ranks.len()];
        for team in self.world.teams[collective.group.index()].clone() {
            for (nth, &input) in inputs.iter().enumerate() {
                let exchanged = self.exchange(id, collective.kind, input, &team);
                let (tensors, received) = exchanged.map_err(|(rank, fault)| self.error(id, rank, fault))?;
                for ((&rank, from), received) in team.iter().zip(tensors).zip(received) {
                    let to = self.launch(id, collective, rank, nth, from, received);
                    results[rank].push(Value::Tensor(to.map_err(|fault| self.error(id, Some(rank), fault))?));
                }
            }
        }
        for (rank, mut values) in results.into_iter().enumerate() {
            let value = match values.len() {
                0 => {
                    let group = self.graph.group(collective.group).name.to_string();
                    let reason = format!("rank {} is in none of its teams", self.ranks[rank].global);
                    return Err(EvalError::Group { group, reason });
                }
                1 if !collective.coalesced => values.remove(0),
                _ => Value::Tuple(values),
            };
            self.set(id, rank, value)?;
        }
        Ok(())
    }

    /// What the ranks of a team send and receive.
    #[expect(clippy::type_complexity, reason = "two lists and a fault with its rank")]
    fn exchange(
        &mut self,
        id: NodeId,
        kind: CollectiveKind,
        input: NodeId,
        team: &[usize],
    ) -> Result<(Vec<Tensor>, Vec<Received>), (Option<usize>, NodeError)> {
        let (mut tensors, mut bytes, mut splits) = (Vec::new(), Vec::new(), Vec::new());
        for &rank in team {
            let at = |fault| (Some(rank), fault);
            let call = Call::new(self.graph, id, &mut self.ranks[rank], &self.symbols, self.options);
            let tensor = match call.value_of(input).map_err(at)? {
                Value::Tensor(tensor) => tensor.clone(),
                Value::Opaque(_) => return Err(at(NodeError::Unknown(input))),
                _ => return Err(at(NodeError::misfit("collectives send tensors"))),
            };
            bytes.push(call.read(&tensor).map_err(at)?);
            if kind == CollectiveKind::AllToAll {
                splits.push(splits_of(&call, &tensor, team.len()).map_err(at)?);
            }
            tensors.push(tensor);
        }
        let pairs = pairs(self.graph, id);
        let sent = Sent { tensors: &tensors, bytes: &bytes, splits: &splits, pairs: &pairs, reduced: OnceCell::new() };
        let receive = |place: usize| sent.receive(kind, place).map_err(|fault| (Some(team[place]), fault));
        let received = (0..team.len()).map(receive).collect::<Result<_, _>>()?;
        Ok((tensors, received))
    }

    /// Starts what one rank receives on its way.
    fn launch(
        &mut self,
        id: NodeId,
        collective: Collective,
        rank: usize,
        nth: usize,
        from: Tensor,
        (sizes, bytes): Received,
    ) -> Result<Tensor, NodeError> {
        let to = match collective.variant {
            Variant::InPlace => from.clone(),
            Variant::Functional => {
                // PyTorch's types of collectives follow the operand's strides; what runs does not. Elements have a
                // logical order, so either will do.
                let call = Call::new(self.graph, id, &mut self.ranks[rank], &self.symbols, self.options);
                let strides = call.stated_strides(&sizes).unwrap_or_else(|| dense_strides(&sizes));
                let poison = vec![super::memory::POISON; bytes.len()];
                let mut to = call.rank.memory.strided(from.dtype, &sizes, &strides, &poison)?;
                to.device = from.device.clone();
                to
            }
            Variant::Out => {
                let call = Call::new(self.graph, id, &mut self.ranks[rank], &self.symbols, self.options);
                let mut out = call.tensors(call.args.get("out"))?;
                if nth >= out.len() {
                    return Err(NodeError::misfit("`out` has too few tensors"));
                }
                out.swap_remove(nth)
            }
        };
        if (to.dtype, count(&to.sizes)) != (from.dtype, count(&sizes)) {
            let (stated, found) = (describe(&Value::Tensor(to)), format!("{} {sizes:?}", from.dtype.short_name()));
            return Err(NodeError::misfit(format!("the result is {found}, but goes to {stated}")));
        }
        self.ranks[rank].memory.launch(Flight { node: id, to: to.clone(), bytes, from })?;
        Ok(to)
    }

    // One call by itself, on the first rank.

    /// Goes on where another machine was.
    pub fn resume(&mut self, counters: Counters) {
        self.alone = true;
        let rank = &mut self.ranks[0];
        (rank.global, rank.draws, rank.fences) = (counters.rank, counters.draws, counters.fences);
        rank.unknown = counters.unknown;
    }

    /// Where another machine may go on.
    pub fn counters(&self) -> Counters {
        let rank = &self.ranks[0];
        Counters { rank: rank.global, draws: rank.draws, fences: rank.fences, unknown: rank.unknown }
    }

    /// Gives an input its value.
    pub fn give(&mut self, id: NodeId, value: &output::Output) -> Result<(), EvalError> {
        let placed = step::place(&mut self.ranks[0].memory, value);
        let value = placed.map_err(|fault| self.error(id, Some(0), fault))?;
        value.hold(&mut self.ranks[0].memory);
        self.ranks[0].values[id.index()] = Some(value);
        Ok(())
    }

    /// Gives an input what the seed makes of its name.
    pub fn seed_input(&mut self, id: NodeId) -> Result<(), EvalError> {
        let value = self.input(id, 0).map_err(|fault| self.error(id, Some(0), fault))?;
        self.set(id, 0, value)
    }

    /// Evaluates a call.
    pub fn one(&mut self, id: NodeId) -> Result<(), EvalError> {
        let value = self.call(id, 0).map_err(|fault| self.error(id, Some(0), fault))?;
        self.set(id, 0, value)
    }

    /// A value as a caller sees it.
    pub fn see(&self, id: NodeId) -> Result<output::Output, EvalError> {
        output::see_node(self.graph, &self.ranks[0], id, &[]).map_err(|fault| self.error(id, Some(0), fault))
    }

    /// The results, after all that is in flight has arrived.
    pub fn finish(mut self) -> Result<Vec<output::RankOutputs>, EvalError> {
        let graph = self.graph;
        let results = graph.order().iter().copied().rfind(|&id| graph.node(id).op == Op::Output);
        let mut all = Vec::new();
        for rank in 0..self.ranks.len() {
            let seen = output::collect(graph, results, &mut self.ranks[rank]);
            all.push(seen.map_err(|fault| self.error(results.unwrap_or_else(|| graph.order()[0]), Some(rank), fault))?);
        }
        Ok(all)
    }
}

/// A value that is not what its type says.
struct Clash {
    found: String,
    stated: String,
    only_strides: bool,
}

impl Clash {
    fn of(found: String, stated: String) -> Self {
        Self { found, stated, only_strides: false }
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Tensor(tensor) => {
            let list = |list: &[usize]| format!("{list:?}");
            let dtype = tensor.dtype.short_name();
            format!("{dtype}{}{}", list(&tensor.sizes), list(&tensor.strides))
        }
        Value::Tuple(values) => format!("({})", values.iter().map(describe).collect::<Vec<_>>().join(", ")),
        Value::Scalar(number) => format!("the number {}", number.float()),
        Value::Opaque(_) => "of unknown type".to_owned(),
    }
}

fn last_uses(graph: &Graph) -> Vec<Option<NodeId>> {
    let mut last = vec![None; graph.arena_len()];
    // What a loop leaves to its next turn must stay.
    if graph.regions().len() > 1 {
        return last;
    }
    for &id in graph.order() {
        let node = graph.node(id);
        if node.op == Op::Input {
            continue;
        }
        last[id.index()] = Some(id);
        for operand in graph.operands(id) {
            if graph.node(*operand).op != Op::Input {
                last[operand.index()] = Some(id);
            }
        }
    }
    last
}

/// Bytes of all tensors on all ranks, by their stated types; saturates.
#[must_use]
pub fn stated_bytes(graph: &Graph, symbols: &Symbols, ranks: usize) -> u64 {
    let each = graph.order().iter().map(|&id| symbols.bytes(graph.type_of(id))).fold(0, u64::saturating_add);
    each.saturating_mul(ranks as u64)
}

fn check_size(graph: &Graph, options: &EvalOptions, symbols: &Symbols, ranks: usize) -> Result<(), EvalError> {
    let bytes = stated_bytes(graph, symbols, ranks);
    if bytes > options.max_bytes {
        return Err(EvalError::GraphTooLarge { bytes, most: options.max_bytes });
    }
    Ok(())
}

/// Takes a value into a mixer: sizes, and elements unless only sizes count.
fn take_in(mixer: &mut Mixer, memory: &RankMemory, value: &Value, shape_only: bool) -> Result<(), NodeError> {
    match value {
        Value::Tensor(tensor) => {
            mixer.bytes(tensor.dtype.short_name().as_bytes());
            tensor.sizes.iter().for_each(|&size| mixer.number(size as u64));
            if !shape_only {
                mixer.bytes(&memory.read(tensor)?);
            }
        }
        Value::Tuple(values) => values.iter().try_for_each(|value| take_in(mixer, memory, value, shape_only))?,
        Value::Scalar(number) => mixer.number(number.float().to_bits()),
        Value::Opaque(state) => mixer.number(*state),
    }
    Ok(())
}

/// The lists of sizes of an all-to-all, equal parts where there are none.
fn splits_of(call: &Call<'_>, tensor: &Tensor, ranks: usize) -> Result<Splits, NodeError> {
    let rows = *tensor.sizes.first().ok_or_else(|| NodeError::misfit("a single element has no parts"))?;
    let list = |position: usize, name: &str| -> Result<Vec<usize>, NodeError> {
        match call.arg(position, &[name]) {
            Some(arg) if !matches!(arg, Arg::List(items) if items.is_empty()) => call.sizes_arg(Some(arg)),
            _ if rows.is_multiple_of(ranks) => Ok(vec![rows / ranks; ranks]),
            _ => Err(NodeError::misfit(format!("{rows} rows are not divided by {ranks} ranks"))),
        }
    };
    let splits = Splits { output: list(1, "output_split_sizes")?, input: list(2, "input_split_sizes")? };
    let total = |sizes: &[usize]| sizes.iter().fold(0usize, |sum, size| sum.saturating_add(*size));
    if total(&splits.input) != rows || splits.input.len() != ranks || splits.output.len() != ranks {
        return Err(NodeError::misfit(format!("{:?} are not parts of {rows} rows for {ranks} ranks", splits.input)));
    }
    call.rank.memory.room(DType::U8, total(&splits.output))?;
    Ok(splits)
}

/// The pairs of a permute: `[[from, to], ..]`, or for each rank where it sends.
fn pairs(graph: &Graph, id: NodeId) -> Vec<(usize, usize)> {
    let Some(Arg::List(items)) = graph.args_of(id).at(1, "src_dst") else { return Vec::new() };
    let number = |arg: &Arg| arg.as_int().and_then(|rank| usize::try_from(rank).ok());
    let pair = |(nth, item): (usize, &Arg)| match item {
        Arg::List(pair) | Arg::Tuple(pair) => Some((number(pair.first()?)?, number(pair.get(1)?)?)),
        item => Some((nth, number(item)?)),
    };
    items.iter().enumerate().filter_map(pair).collect()
}
