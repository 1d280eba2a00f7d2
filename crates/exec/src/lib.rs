//! Runs a [`Program`] on a backend: one [`Executor`] for each rank, on a thread of its own.
//!
//! - **Memory.** The arenas of the program's plan are allocated once and kept, so that comm buffers lie at the same place in
//!   each run. What the caller gives is copied into buffers of its own, and what it gets is copied out.
//! - **Streams.** Compute steps run on the calling thread, in order. Collectives are launched there and run on the backend;
//!   a step that has to come after one waits for it.
//! - **Compute steps** are run by a [`Kernels`]: the [reference evaluator](Reference), or the embedding program's own.
//! - **Copies** convert dtypes as the evaluator does.
//! - **GPUs.** A [`DeviceExecutor`] does the same with memory and kernels of a GPU.
//! - **Files.** Inputs come from a [`TensorFile`] where they are not given otherwise, outputs become one with
//!   [`to_safetensors`].
//!
//! ```
//! use bucketeer::ir::text::parse;
//! use bucketeer::passes::lowering::{LowerOptions, lower};
//! use bucketeer_exec::{Executor, Reference, seeded_inputs, world_size};
//! use bucketeer_comm::{Backend, local};
//!
//! let graph = parse("x = input f32[4]\ns = all_reduce(x, sum, G:2) : f32[4]; w = wait(s) : f32[4]\noutput(relu(w))")?;
//! let (program, _) = lower(&graph, &LowerOptions::default())?;
//! let results = local::run(world_size(&program)?, local::LocalOptions::default(), |rank| {
//!     let mut executor = Executor::new(&program, &rank)?;
//!     let inputs = seeded_inputs(&program, rank.rank(), 0)?;
//!     executor.run(&inputs, &mut Reference::new(rank.rank(), 0))
//! })?;
//! let outputs: Vec<_> = results.into_iter().map(|result| result.expect("no rank panics").unwrap().outputs).collect();
//! assert_eq!(outputs[0], outputs[1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod copy;
mod device;
mod kernels;
mod memory;
mod moves;
mod tensor_file;
mod times;
mod trace;

pub use copy::{CopyError, copy_elements};
pub use device::DeviceExecutor;
pub use kernels::{ComputeStep, Kernels, Reference, UnknownOperator, seeded_inputs};
pub use moves::{MoveError, MoveKernel};
pub use tensor_file::{
    OutputFileError, TensorFault, TensorFile, TensorFileError, check_outputs, output_names, to_safetensors,
};
pub use times::{StepKindTimes, Times};
pub use trace::{Event, Launch, Moved, Row, chrome_trace};

use bucketeer::ir::{DType, GlobalRank, GroupRank, Membership};
use bucketeer::program::{
    self, Collective, CommOp, Compute, Layout, Made, Moves, Operand, Part, Program, StepId, StepKind, Stream,
};
use bucketeer_comm::store::MAX_WORLD_SIZE;
use bucketeer_comm::{
    Announced, Backend, Buffer, BufferError, Call, CallOptions, CallSignature, CommError, Group, Op, Operands, Work,
};
use bucketeer_eval::{EvalError, Output};
use memory::ProgramMemory;
use std::time::Instant;
use times::Clock;

/// Why a program did not run to its end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// A collective failed.
    #[error("`{node}`: {error}")]
    Comm {
        /// The step's node.
        node: String,
        /// Why.
        error: Box<CommError>,
    },
    /// A buffer cannot be had.
    #[error("{what}: {error}")]
    Buffer {
        /// Whose.
        what: String,
        /// Why.
        error: Box<BufferError>,
    },
    /// A compute step failed.
    #[error(transparent)]
    Compute(Box<EvalError>),
    /// A compute step made something else than the program says.
    #[error("`{node}` made {found}, but {expected} is expected")]
    Made {
        /// The step's node.
        node: String,
        /// What it made.
        found: String,
        /// What it should have made.
        expected: String,
    },
    /// The caller's values are not what the program asks for.
    #[error("input `{name}`: {reason}")]
    Input {
        /// The input.
        name: String,
        /// What was found, and what was expected.
        reason: String,
    },
    /// Nobody says who is in a group.
    #[error("group `{group}`: {reason}")]
    Group {
        /// The group.
        group: String,
        /// What is wrong.
        reason: String,
    },
    /// The device or its driver refuses.
    #[error("`{node}`: {reason}")]
    Device {
        /// The step's node, or what was to be done.
        node: String,
        /// Why, and what is behind it.
        reason: String,
    },
    /// The backend has no such call.
    #[error("`{node}`: {reason}")]
    Unsupported {
        /// The step's node.
        node: String,
        /// Why.
        reason: String,
    },
}

impl From<EvalError> for RunError {
    fn from(error: EvalError) -> Self {
        Self::Compute(Box::new(error))
    }
}

impl RunError {
    fn comm(node: &str, error: CommError) -> Self {
        Self::Comm { node: node.to_owned(), error: Box::new(error) }
    }

    fn copy(node: &str, error: &CopyError) -> Self {
        Self::Unsupported { node: node.to_owned(), reason: error.to_string() }
    }

    fn buffer(what: impl Into<String>, error: BufferError) -> Self {
        Self::Buffer { what: what.into(), error: Box::new(error) }
    }
}

/// What a run made on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The results, in order.
    pub outputs: Vec<Output>,
    /// Inputs as they are afterwards, in order.
    pub inputs: Vec<Output>,
    /// Where the time went.
    pub times: Times,
    /// What was computed otherwise than the graph says, as its meaning or value is not known.
    pub unknown: Vec<UnknownOperator>,
    /// What ran when.
    pub events: Vec<Event>,
}

/// The groups of a program and of its bodies, one of each name.
fn groups_of(program: &Program) -> Vec<&program::Group> {
    let mut groups: Vec<&program::Group> = program.groups.iter().collect();
    for group in program.bodies.iter().flat_map(|body| groups_of(&body.program)) {
        match groups.iter_mut().find(|known| known.name == group.name) {
            Some(known) if known.size == 0 || known.members.is_empty() => *known = group,
            Some(_) => {}
            None => groups.push(group),
        }
    }
    groups
}

/// Number of ranks that a program needs: those that its groups list, or as many as its only group has.
///
/// # Errors
/// [`RunError::Group`] when members are not known, ranks are missing below the largest, or there are more than
/// [`MAX_WORLD_SIZE`].
pub fn world_size(program: &Program) -> Result<u32, RunError> {
    let groups = groups_of(program);
    let mut ranks: Vec<u32> = groups.iter().flat_map(|group| group.members.iter().flatten().copied()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let unlisted = || groups.iter().filter(|group| group.members.is_empty() && group.size > 1);
    if ranks.is_empty() {
        let mut sizes = unlisted().map(|group| group.size);
        return match (sizes.next(), unlisted().nth(1)) {
            (Some(size), None) if size > MAX_WORLD_SIZE => Err(RunError::Group {
                group: unlisted().next().map_or_else(String::new, |group| group.name.to_string()),
                reason: format!("it has {size} ranks; at most {MAX_WORLD_SIZE} can run"),
            }),
            (size, None) => Ok(size.unwrap_or(1)),
            (_, Some(second)) => Err(RunError::Group {
                group: second.name.to_string(),
                reason: "its members are not known, and it is not the only group; list them".to_owned(),
            }),
        };
    }
    match (0..).zip(&ranks).find(|(expected, found)| expected != *found) {
        None => Ok(ranks.len() as u32),
        Some((missing, _)) => {
            let group = groups.iter().find(|group| !group.members.is_empty());
            let group = group.map_or_else(String::new, |group| group.name.to_string());
            Err(RunError::Group {
                group,
                reason: format!("ranks are numbered from 0, and rank {missing} is in no group"),
            })
        }
    }
}

/// One rank's memory and groups for one program; see the module docs.
pub struct Executor<'a> {
    program: &'a Program,
    backend: &'a dyn Backend,
    /// By index in the program: none for groups that this rank is not in.
    groups: Vec<Option<Group>>,
    memory: ProgramMemory<'a>,
    /// By index in the program.
    bodies: Vec<Executor<'a>>,
}

impl<'a> Executor<'a> {
    /// Allocates the program's arenas, joins its groups and announces what it launches on them. All ranks do this, each for
    /// itself. Groups that an earlier program on the backend has joined are the same, as those of a backward step are those of
    /// its forward step.
    ///
    /// # Errors
    /// [`RunError`] when there is not enough memory, it is not known who is in a group, or another rank announces something
    /// else.
    pub fn new(program: &'a Program, backend: &'a dyn Backend) -> Result<Self, RunError> {
        let mut groups = Vec::with_capacity(program.groups.len());
        for group in &program.groups {
            groups.push(match members(group, backend)? {
                Some(members) => Some(match backend.joined(&group.name, &members) {
                    Some(joined) => joined,
                    None => {
                        let joined = backend.new_group(&group.name, &members);
                        joined.map_err(|error| RunError::comm(&group.name, error))?
                    }
                }),
                None => None,
            });
        }
        let places = groups.iter().map(|group| group.as_ref().map_or(0, |group| u64::from(group.rank().0))).collect();
        let bodies = program.bodies.iter().map(|body| Self::new(&body.program, backend)).collect::<Result<_, _>>()?;
        let executor = Self { program, backend, groups, memory: ProgramMemory::new(program, backend, places)?, bodies };
        executor.announce()?;
        Ok(executor)
    }

    /// Says what is going to be launched.
    fn announce(&self) -> Result<(), RunError> {
        let mut launches = Vec::new();
        for step in &self.program.steps {
            let StepKind::Collective(collective) = &step.kind else { continue };
            if self.groups[collective.group as usize].is_none() {
                continue;
            }
            let ranges = |part: &Part| self.ranges(&step.node, part);
            let Calls { group, calls, .. } = self.calls(&step.node, collective, ranges)?;
            if !calls.is_empty() {
                launches.push(Announced { group, calls: calls.iter().map(CallSignature::of).collect() });
            }
        }
        self.backend.announce(&launches).map_err(|error| RunError::comm("what is going to be launched", error))
    }

    /// A rank is done with a send or receive before others are with theirs. Whoever goes then would break them, so all wait
    /// for all.
    fn leave_together(&self) -> Result<(), RunError> {
        let program = self.program;
        let mut groups: Vec<u32> = Vec::new();
        for step in &program.steps {
            if let StepKind::Collective(collective) = &step.kind
                && matches!(collective.op, CommOp::Permute { .. } | CommOp::Send { .. } | CommOp::Recv { .. })
            {
                groups.push(collective.group);
            }
        }
        groups.sort_unstable();
        groups.dedup();
        for group in groups.into_iter().filter_map(|group| self.groups[group as usize].as_ref()) {
            let done = self.backend.barrier(group, &CallOptions::blocking());
            done.map_err(|error| RunError::comm("the end of the run", error))?;
        }
        Ok(())
    }

    /// What a part of a collective sends and receives.
    fn ranges(&self, node: &str, part: &Part) -> Result<(Buffer, Buffer), RunError> {
        Ok((self.memory.range(node, part.send)?, self.memory.range(node, part.recv)?))
    }

    /// Bytes that were allocated: the plan's arenas, and buffers for what the caller gives; those of bodies, too.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.bodies.iter().fold(self.memory.bytes(), |sum, body| sum.saturating_add(body.allocated_bytes()))
    }

    /// Runs the program once, on values for its inputs, in order.
    ///
    /// # Errors
    /// [`RunError`], naming the step. The groups may be broken then; see [`CommError`].
    pub fn run(&mut self, inputs: &[Output], kernels: &mut dyn Kernels) -> Result<Run, RunError> {
        let program = self.program;
        self.memory.take_inputs(inputs)?;
        let (works, clock) = (vec![None; program.steps.len()], Clock::start(program, &self.groups));
        let mut running = Running { executor: self, works, clock, unknown: Vec::new() };
        for (index, step) in program.steps.iter().enumerate() {
            for &before in &step.after {
                running.finish(before)?;
            }
            running.step(StepId(index as u32), step.stream, kernels)?;
        }
        for index in 0..program.steps.len() {
            running.finish(StepId(index as u32))?;
        }
        running.executor.leave_together()?;
        let mut unknown = std::mem::take(&mut running.unknown);
        let (times, events) = running.clock.end();
        let outputs = program.outputs.values.iter().map(|value| self.memory.read_operand(value, "the output"));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let inputs = program.inputs.iter().map(|input| self.memory.read_operand(&input.value, &input.name));
        kernels::unknown(program, kernels, &mut unknown);
        Ok(Run { outputs, inputs: inputs.collect::<Result<_, _>>()?, times, unknown, events })
    }
}

/// The members of the group that this rank is in; none if it is in none of that name, or the group is not used.
fn members(group: &bucketeer::program::Group, backend: &dyn Backend) -> Result<Option<Vec<GlobalRank>>, RunError> {
    let own = backend.rank().0;
    if group.members.is_empty() {
        let world = backend.world_size();
        let size = group.size;
        let fault = |reason| Err(RunError::Group { group: group.name.to_string(), reason });
        return match Membership::of_unlisted(Some(size), Some(world)) {
            _ if size == 0 => Ok(None),
            _ if size > MAX_WORLD_SIZE => fault(format!("it has {size} ranks; at most {MAX_WORLD_SIZE} can run")),
            Membership::Alone => Ok(Some(vec![GlobalRank(own)])),
            Membership::World => Ok(Some((0..world).map(GlobalRank).collect())),
            Membership::First(_) | Membership::Unknown => {
                fault(format!("it has {size} ranks of {world}, and its members are not known; list them"))
            }
        };
    }
    let list = group.members.iter().find(|list| list.contains(&own));
    Ok(list.map(|list| list.iter().copied().map(GlobalRank).collect()))
}

/// One run on its way.
struct Running<'r, 'a> {
    executor: &'r mut Executor<'a>,
    /// By step: the collective in flight.
    works: Vec<Option<Work>>,
    clock: Clock<'a>,
    /// What bodies computed otherwise than their graphs say.
    unknown: Vec<UnknownOperator>,
}

impl Running<'_, '_> {
    fn node(&self, step: StepId) -> &str {
        &self.executor.program.steps[step.0 as usize].node
    }

    /// Waits for a collective, if it is one that is in flight.
    fn finish(&mut self, step: StepId) -> Result<(), RunError> {
        let Some(work) = self.works[step.0 as usize].take() else { return Ok(()) };
        let start = Instant::now();
        let done = work.wait(None);
        self.clock.waited(step, start);
        done.map_err(|error| RunError::comm(self.node(step), error))
    }

    fn step(&mut self, id: StepId, stream: Stream, kernels: &mut dyn Kernels) -> Result<(), RunError> {
        let program = self.executor.program;
        let step = &program.steps[id.0 as usize];
        let start = Instant::now();
        match &step.kind {
            StepKind::Wait(of) => return self.finish(*of),
            StepKind::Pack(moves) | StepKind::Unpack(moves) => self.moves(&step.node, moves)?,
            StepKind::Copy(segment) => self.executor.memory.copy(&step.node, segment)?,
            StepKind::Collective(collective) => {
                let work = self.launch(&step.node, collective)?;
                self.clock.launched(id, start);
                self.works[id.0 as usize] = work;
                // On the compute stream nobody waits for it: it is done when it is done.
                if stream == Stream::Compute {
                    self.finish(id)?;
                }
                return Ok(());
            }
            StepKind::Compute(compute) => self.compute(&step.node, compute, kernels)?,
            StepKind::Run(run) => self.run_body(&step.node, run, kernels)?,
        }
        self.clock.ran(id, start);
        self.poll();
        Ok(())
    }

    /// Notes which collectives have ended, for the trace.
    fn poll(&mut self) {
        let works = &self.works;
        self.clock.note_done(|step| works[step.0 as usize].as_ref().is_some_and(Work::is_done));
    }

    fn moves(&self, node: &str, moves: &Moves) -> Result<(), RunError> {
        moves.segments.iter().try_for_each(|segment| self.executor.memory.copy(node, segment))?;
        moves.zeros.iter().try_for_each(|range| self.executor.memory.zero(node, *range))
    }

    /// Starts a collective; several parts are one launch.
    fn launch(&self, node: &str, collective: &Collective) -> Result<Option<Work>, RunError> {
        let executor = &*self.executor;
        let calls = executor.calls(node, collective, |part| executor.ranges(node, part))?;
        calls.prepare(node)?;
        calls.start(node, self.executor.backend)
    }

    fn compute(&mut self, node: &str, compute: &Compute, kernels: &mut dyn Kernels) -> Result<(), RunError> {
        self.executor.compute(node, compute, kernels)
    }

    fn run_body(&mut self, node: &str, run: &program::Run, kernels: &mut dyn Kernels) -> Result<(), RunError> {
        let Executor { memory, bodies, .. } = &mut *self.executor;
        let first = match &run.pick {
            None => true,
            Some(pick) => is_true(&memory.read_operand(pick, node)?).ok_or_else(|| {
                let reason = "what says which graph runs is neither a number nor a tensor of one element".to_owned();
                RunError::Unsupported { node: node.to_owned(), reason }
            })?,
        };
        let given =
            run.given.iter().map(|operand| memory.read_operand(operand, node)).collect::<Result<Vec<_>, _>>()?;
        let body = run.bodies[usize::from(!first)] as usize;
        let start = Instant::now();
        let done = bodies[body].run(&given, kernels)?;
        self.clock.ran_body(start, &done.times, done.events);
        kernels::add_unknown(&mut self.unknown, done.unknown);
        let mut values = done.outputs;
        let made = match &run.made {
            Made::Tuple(_) | Made::Nothing => Output::Tuple(values),
            Made::Tensor(_) | Made::Host(_) => values.swap_remove(0),
        };
        self.executor.memory.write_made(node, &run.made, &made)
    }
}

/// Whether a number, or the one element of a tensor, is true.
fn is_true(value: &Output) -> Option<bool> {
    match value {
        Output::Number(number) => Some(number.float() != 0.0),
        Output::Tensor(tensor) if tensor.sizes.iter().product::<usize>() == 1 => {
            let (from, to) = (Layout::dense(tensor.dtype, &[1])?, Layout::dense(DType::Bool, &[1])?);
            let mut found = [0];
            copy_elements(&tensor.bytes, &from, &mut found, &to).ok()?;
            Some(found != [0])
        }
        Output::Tensor(_) | Output::Tuple(_) | Output::Opaque(_) => None,
    }
}

/// What a backend does for one collective, on this rank.
struct Calls {
    group: Group,
    calls: Vec<Call>,
    /// Ranges of the host to fill with zeros first, and copies between two.
    zeros: Vec<Buffer>,
    copies: Vec<(Buffer, Buffer)>,
}

impl Calls {
    /// What comes before the calls.
    fn prepare(&self, node: &str) -> Result<(), RunError> {
        let fault = |error| RunError::buffer(format!("`{node}`"), error);
        for zeros in &self.zeros {
            zeros.write().map_err(fault)?.fill(0);
        }
        for (from, to) in &self.copies {
            let bytes = from.read().map_err(fault)?.to_vec();
            to.write().map_err(fault)?.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Launches the calls, several as one; none if there is nothing to do.
    fn start(mut self, node: &str, backend: &dyn Backend) -> Result<Option<Work>, RunError> {
        let fault = |error| RunError::comm(node, error);
        let options = CallOptions::default();
        if let [_] = self.calls[..] {
            let call = self.calls.remove(0);
            return backend.launch(&self.group, call, &options).map(Some).map_err(fault);
        }
        if self.calls.is_empty() {
            return Ok(None);
        }
        backend.start_coalescing(&self.group).map_err(fault)?;
        for call in self.calls {
            backend.launch(&self.group, call, &options).map_err(fault)?;
        }
        backend.end_coalescing(&self.group, &options).map(Some).map_err(fault)
    }
}

impl Executor<'_> {
    /// The backend's calls for a collective, on buffers for what each part sends and receives.
    fn calls(
        &self,
        node: &str,
        collective: &Collective,
        mut ranges: impl FnMut(&Part) -> Result<(Buffer, Buffer), RunError>,
    ) -> Result<Calls, RunError> {
        let executor = self;
        let Some(group) = &executor.groups[collective.group as usize] else {
            let group = executor.program.groups[collective.group as usize].name.to_string();
            let reason = format!("rank {} launches `{node}`, but is not in it", executor.backend.rank().0);
            return Err(RunError::Group { group, reason });
        };
        let mut made = Calls { group: group.clone(), calls: Vec::new(), zeros: Vec::new(), copies: Vec::new() };
        for part in &collective.parts {
            let (send, recv) = ranges(part)?;
            self.calls_of_part(collective, send, recv, &mut made);
        }
        if matches!(collective.op, CommOp::Barrier) {
            made.calls.push(Call::barrier());
        }
        Ok(made)
    }

    fn calls_of_part(&self, collective: &Collective, send: Buffer, recv: Buffer, made: &mut Calls) {
        let dtype = collective.dtype;
        let one = |op| Call::collective(op, Operands::new(send.clone(), recv.clone(), dtype));
        made.calls.push(match &collective.op {
            CommOp::AllGather => one(Op::AllGather),
            CommOp::ReduceScatter(op) => one(Op::ReduceScatter((*op).into())),
            CommOp::AllReduce(op) => one(Op::AllReduce((*op).into())),
            CommOp::Broadcast { root } => one(Op::Broadcast { root: GroupRank(*root) }),
            CommOp::Reduce { op, root } => one(Op::Reduce { op: (*op).into(), root: GroupRank(*root) }),
            CommOp::AllToAll { send_counts, recv_counts } => {
                one(Op::AllToAll { send: send_counts.clone(), receive: recv_counts.clone() })
            }
            CommOp::Send { peer } => Call::send(send, dtype, GroupRank(*peer)),
            CommOp::Recv { peer } => Call::recv(recv, dtype, GroupRank(*peer)),
            CommOp::Barrier => return,
            CommOp::Permute { pairs } => {
                let place = self.memory.place(collective.group);
                match pairs.iter().find(|(_, to)| u64::from(*to) == place) {
                    None => made.zeros.push(recv),
                    Some((from, _)) if u64::from(*from) == place => made.copies.push((send.clone(), recv)),
                    Some((from, _)) => made.calls.push(Call::recv(recv, dtype, GroupRank(*from))),
                }
                for (_, to) in pairs.iter().filter(|(from, to)| u64::from(*from) == place && from != to) {
                    made.calls.push(Call::send(send.clone(), dtype, GroupRank(*to)));
                }
                return;
            }
        });
    }

    fn compute(&mut self, node: &str, compute: &Compute, kernels: &mut dyn Kernels) -> Result<(), RunError> {
        let executor = self;
        let operands = compute.operands.iter().map(|operand| executor.memory.read_operand(operand, node));
        let operands: Vec<Output> = operands.collect::<Result<_, _>>()?;
        let form = &executor.program.calls[compute.call as usize];
        let made = kernels::type_of(executor.program, &compute.made);
        let step = ComputeStep { name: node, target: &form.target, args: &form.args, operands: &operands, made };
        let result = kernels.run(&step)?;
        for (index, value) in &result.written {
            let written = compute.operands.get(*index).filter(|_| compute.writes.contains(&(*index as u32)));
            if let Some(Operand::Tensor(view)) = written {
                executor.memory.write_tensor(node, *view, value)?;
            }
        }
        executor.memory.write_made(node, &compute.made, &result.made)
    }
}

/// What a step makes, in words.
const fn describe(made: &Made) -> &'static str {
    match made {
        Made::Nothing => "nothing",
        Made::Tensor(_) => "a tensor",
        Made::Host(_) => "a value",
        Made::Tuple(_) => "several values",
    }
}

/// Locks, whether or not a holder panicked: what our locks guard is whole at every point where a holder may panic.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
