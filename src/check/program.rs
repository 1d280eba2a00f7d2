//! Proves that a lowered program computes what its graph does. Shares no code with the passes.
//!
//! The graph is walked first, and each node gets its value (the lattice of [`crate::check`]), with the program's sizes. Then
//! the program's steps are played in issue order:
//!
//! ```text
//! State: for each byte range of each buffer, the symbolic value it holds, or Unset.
//!   input      S[b] := Input(n)
//!   pack, unpack, copy   S[to] := S[from], each element converted where dtypes differ;   zeros: S[r] := 0
//!   compute of node n    need each operand view to hold what n read of its operand;      S[result] := value of n
//!   gather               S[recv] := Ranks(S[send]), a row for each rank
//!   reduce, broadcast    S[recv] := Merged(op, S[send])
//!   scatter              S[recv] := Shard(op, S[send]) from this rank's row on
//!   all-to-all, permute of node n   need S[send] to be what n sends, and its counts to be n's;   S[recv] := value of n
//!   run of node n        need pick and given to be what n is given, and each body to be proven;   S[made] := value of n
//!   send, recv, barrier  need the node of that name to be one;   recv writes the value of its node
//! ```
//!
//! Places that depend on the rank are a storage of their own, the rank's slot: a gather reads it and fills the whole, a
//! scatter fills it. Writing the slot forgets the whole, and the other way round.
//!
//! # What is checked
//!
//! 1. Outputs hold the graph's outputs; input buffers hold at the end what the graph leaves in its inputs' memory.
//! 2. **Order** (clock.rs): two steps that touch one buffer, one of them writing, are ordered by their streams and events.
//!    A collective touches its buffers from its launch to whatever comes behind its wait.
//! 3. **Plan** (contents.rs): a buffer takes its place in the arena at its first step. Whoever was there before is done by
//!    then, by streams and events, and is not read again.
//! 4. Collectives are launched in the graph's order, each once; those that move nothing may be missing. Each launch on a
//!    stream of its own is waited for. Random draws and fences keep their order.
//!
//! It is precise for what lowering makes, not for all programs: [`ProgramVerdict::CannotDecide`] says what could not be
//! followed. A maximum of bools counts as their sum, a minimum as their product.
//!
//! Cost: near-linear in steps, operands and pieces.

mod bodies;
mod calls;
mod clock;
mod collectives;
mod contents;
mod holds;

use super::terms::{Context, GroupKey, Val};
use super::walk::{Stop, Walked, walk_recording};
use crate::ir::concrete::with_sizes;
use crate::ir::{Graph, NodeId, Op};
use crate::program::{BufferId, HostId, Operand, Program, StepKind, Stream};
use clock::Clocks;
use contents::Contents;
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

/// What the checker says of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramVerdict {
    /// It computes what its graph does.
    Equal(Proof),
    /// It does not, or breaks a rule.
    Different(Finding),
    /// It could not be followed.
    CannotDecide(Finding),
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Steps played.
    pub steps: usize,
    /// Launches among them.
    pub launches: usize,
}

/// Where a program differs, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The step, if one is at fault.
    pub step: Option<usize>,
    /// The node that it is for, or what else is at fault.
    pub node: String,
    /// What is wrong with it.
    pub reason: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.step {
            Some(step) => write!(f, "step s{step} ({}): {}", self.node, self.reason),
            None => write!(f, "{}: {}", self.node, self.reason),
        }
    }
}

/// Why playing ended early.
enum Halt {
    Different(String),
    Undecided(String),
}

type Play<T = ()> = Result<T, Halt>;

fn different<T>(reason: impl Into<String>) -> Play<T> {
    Err(Halt::Different(reason.into()))
}

fn undecided<T>(reason: impl Into<String>) -> Play<T> {
    Err(Halt::Undecided(reason.into()))
}

/// Decides whether a program computes what a graph does; see the module docs.
#[must_use]
pub fn prove(graph: &Graph, program: &Program) -> ProgramVerdict {
    let fault = |node: &str, reason: String| Finding { step: None, node: node.to_owned(), reason };
    if let Err(error) = program.check_form() {
        return ProgramVerdict::Different(fault("program", error.to_string()));
    }
    let concrete = match with_sizes(graph, &program.symbols) {
        Ok((concrete, _)) => concrete,
        Err(error) => return ProgramVerdict::CannotDecide(fault("graph", error.to_string())),
    };
    let mut context = Context::new();
    let walked = match walk_recording(&mut context, &concrete) {
        Ok(walked) => walked,
        Err(Stop::Undecided { node, reason }) => {
            return ProgramVerdict::CannotDecide(fault(concrete.name_of(node), reason));
        }
        Err(Stop::Fault { node, reason }) => {
            return ProgramVerdict::Different(fault(
                concrete.name_of(node),
                format!("the graph is at fault: it {reason}"),
            ));
        }
    };
    let mut player = Player::new(&mut context, &walked, program);
    match player.play() {
        Ok(proof) => ProgramVerdict::Equal(proof),
        Err((step, node, halt)) => {
            let fault = |reason| Finding { step, node, reason };
            match halt {
                Halt::Different(reason) => ProgramVerdict::Different(fault(reason)),
                Halt::Undecided(reason) => ProgramVerdict::CannotDecide(fault(reason)),
            }
        }
    }
}

struct Player<'a, 'g, 'c> {
    context: &'c mut Context<'g>,
    walked: &'a Walked<'g>,
    graph: &'g Graph,
    program: &'a Program,
    names: HashMap<&'g str, NodeId, FxBuildHasher>,
    groups: Vec<GroupKey>,
    contents: Contents,
    clocks: Clocks,
    /// Values outside buffers, by the steps that made them.
    hosts: HashMap<HostId, Val, FxBuildHasher>,
    /// Buffers of attributes of the module, by what reads them.
    constants: HashMap<&'a str, BufferId, FxBuildHasher>,
    /// What attributes of the module hold that are in no buffer.
    held: HashMap<&'g str, Val, FxBuildHasher>,
    /// For each node whose result is a tuple: the nodes that read an element.
    elements: HashMap<NodeId, Vec<(usize, NodeId)>, FxBuildHasher>,
    /// All-to-alls whose parts the graph shows to be equal.
    even: HashSet<NodeId, FxBuildHasher>,
    /// Nodes launched so far, in order.
    launched: Vec<NodeId>,
    /// Nodes with effects beside memory that ran so far, in order.
    fenced: Vec<NodeId>,
    /// Calls of graphs that launch, as they ran.
    called: Vec<NodeId>,
    /// By index in the program: whether a body was proven, with what was looked at.
    bodies: Vec<Option<Proof>>,
}

type Stopped = (Option<usize>, String, Halt);

impl<'a, 'g, 'c> Player<'a, 'g, 'c> {
    fn new(context: &'c mut Context<'g>, walked: &'a Walked<'g>, program: &'a Program) -> Self {
        let graph = walked.graph;
        let names = graph.order().iter().map(|&id| (graph.name_of(id), id)).collect();
        let groups = walked.groups.clone();
        let constants = calls::constants(program);
        let streams = program.groups.len() + 1;
        Self {
            names,
            groups,
            contents: Contents::new(program, calls::held(context, walked, &constants)),
            clocks: Clocks::new(streams, program.buffers.len()),
            hosts: HashMap::default(),
            constants,
            held: walked.attributes.iter().map(|&(id, initial, _)| (graph.target_of(id), initial)).collect(),
            elements: calls::elements(graph),
            even: walked.launches.iter().filter(|launch| launch.even).map(|launch| launch.node).collect(),
            launched: Vec::new(),
            fenced: Vec::new(),
            called: Vec::new(),
            bodies: vec![None; program.bodies.len()],
            context,
            walked,
            graph,
            program,
        }
    }

    fn play(&mut self) -> Result<Proof, Stopped> {
        let whole = |what: &str| {
            let what = what.to_owned();
            move |halt| (None, what, halt)
        };
        self.groups_agree().map_err(whole("groups"))?;
        self.inputs().map_err(whole("inputs"))?;
        for index in 0..self.program.steps.len() {
            self.step(index).map_err(|halt| (Some(index), self.program.steps[index].node.to_string(), halt))?;
        }
        self.order().map_err(whole("order"))?;
        self.outputs().map_err(whole("outputs"))?;
        self.inputs_at_the_end().map_err(whole("inputs"))?;
        self.attributes_at_the_end()?;
        let own = Proof { steps: self.program.steps.len(), launches: self.program.launches() };
        Ok(self
            .bodies
            .iter()
            .flatten()
            .fold(own, |sum, body| Proof { steps: sum.steps + body.steps, launches: sum.launches + body.launches }))
    }

    fn groups_agree(&self) -> Play {
        for (index, group) in self.graph.groups().iter().enumerate() {
            let members: Vec<Vec<u32>> =
                group.members.iter().map(|list| list.iter().map(|rank| rank.0).collect()).collect();
            let same = self.program.groups.get(index).is_some_and(|other| {
                other.name == group.name && other.size == group.size.unwrap_or(0) && other.members == members
            });
            if !same {
                return different(format!("group `{}` is another one in the program", group.name));
            }
        }
        Ok(())
    }

    fn inputs(&mut self) -> Play {
        if self.program.inputs.len() != self.walked.inputs.len() {
            return different("the program takes another number of inputs than the graph");
        }
        for (input, &(id, _)) in self.program.inputs.iter().zip(&self.walked.inputs) {
            if *input.name != *self.graph.name_of(id) {
                return different(format!("`{}` stands where the graph has `{}`", input.name, self.graph.name_of(id)));
            }
            let val = self.walked.vals[id.index()];
            match &input.value {
                Operand::Tensor(view) => self.contents.put(self.context, self.program, *view, val)?,
                Operand::Host(host) => {
                    self.hosts.insert(*host, val);
                }
                Operand::Int(_) => self.holds(&input.value, id, val)?,
                Operand::Tuple(_) => return undecided(format!("`{}` is a tuple", input.name)),
            }
        }
        Ok(())
    }

    fn step(&mut self, index: usize) -> Play {
        let step = &self.program.steps[index];
        self.clocks.begin(self.program, index);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        step.for_each_access(&mut |place, access| match access {
            crate::program::lives::Access::Read => reads.push(place.buffer()),
            crate::program::lives::Access::Write => writes.push(place.buffer()),
        });
        reads.sort_unstable();
        if matches!(step.kind, StepKind::Pack(_) | StepKind::Unpack(_) | StepKind::Copy(_))
            && let Some(&both) = writes.iter().find(|buffer| reads.binary_search(buffer).is_ok())
        {
            let name = &self.program.buffer(both).name;
            return different(format!("it reads `{name}` and writes it, but its segments move in any order"));
        }
        for &buffer in reads.iter().chain(&writes) {
            self.contents.claim(self.program, &self.clocks, buffer)?;
        }
        for buffer in reads {
            self.clocks.read(self.program, buffer)?;
        }
        for buffer in writes {
            self.clocks.write(self.program, buffer)?;
        }
        match &step.kind {
            StepKind::Pack(moves) | StepKind::Unpack(moves) => self.moves(index, moves),
            StepKind::Copy(segment) => self.moved(index, std::slice::from_ref(segment)),
            StepKind::Collective(collective) => self.collective(index, collective),
            StepKind::Wait(of) => {
                self.clocks.wait(*of);
                Ok(())
            }
            StepKind::Compute(compute) => self.compute(index, compute),
            StepKind::Run(run) => self.run(index, run),
        }
    }

    /// Launches, draws and fences in the graph's order.
    fn order(&self) -> Play {
        let mut launched = self.launched.iter().peekable();
        for launch in &self.walked.launches {
            let mut found = false;
            while launched.next_if(|&&id| id == launch.node).is_some() {
                found = true;
            }
            if !found && !launch.trivial {
                return different(format!(
                    "`{}` is not launched, or not in the graph's order",
                    self.graph.name_of(launch.node)
                ));
            }
        }
        if let Some(&&extra) = launched.peek() {
            return different(format!(
                "`{}` is launched out of the graph's order, or again",
                self.graph.name_of(extra)
            ));
        }
        let fenced = |id: &NodeId| calls::keeps_its_place(self.walked, *id);
        let wanted: Vec<NodeId> = self.graph.order().iter().copied().filter(fenced).collect();
        if let Some(at) = (0..wanted.len().max(self.fenced.len())).find(|&at| wanted.get(at) != self.fenced.get(at)) {
            let name = |id: Option<&NodeId>| id.map_or("nothing", |&id| self.graph.name_of(id));
            let (wanted, found) = (name(wanted.get(at)), name(self.fenced.get(at)));
            return different(format!(
                "of what keeps its place, the graph has `{wanted}` where the program has `{found}`"
            ));
        }
        let wanted = self.walked.launching.iter().map(|&(id, _)| id);
        if !wanted.eq(self.called.iter().copied()) {
            return different("graphs that launch are not called in the graph's order");
        }
        self.clocks.all_waited(self.program)
    }

    fn outputs(&mut self) -> Play {
        let Some(output) = self.walked.output else {
            let none = self.program.outputs.values.is_empty();
            return if none { Ok(()) } else { different("the graph has no outputs") };
        };
        let operands = self.graph.operands(output);
        let values = &self.program.outputs.values;
        if self.program.outputs.args != *self.graph.args_of(output) || values.len() != operands.len() {
            return different("they have another form than the graph's");
        }
        self.clocks.end(self.program.steps.len());
        for ((value, &operand), &val) in values.iter().zip(operands).zip(&self.walked.outputs) {
            if let Operand::Tensor(view) = value {
                let buffer = self.program.buffer(view.buffer);
                if buffer.kind == crate::program::BufferKind::Comm {
                    return different(format!("`{}` lies in a comm buffer", self.graph.name_of(operand)));
                }
                self.contents.claim(self.program, &self.clocks, view.buffer)?;
                self.clocks.read(self.program, view.buffer)?;
            }
            self.holds(value, operand, val)?;
        }
        Ok(())
    }

    fn inputs_at_the_end(&mut self) -> Play {
        for (input, &(id, val)) in self.program.inputs.iter().zip(&self.walked.inputs) {
            if matches!(input.value, Operand::Tensor(_)) {
                self.holds(&input.value, id, val)?;
            }
        }
        Ok(())
    }

    /// Attributes of the module are left as the graph leaves them: those that lie in buffers there, the others where they
    /// were.
    fn attributes_at_the_end(&mut self) -> Result<(), Stopped> {
        for &(id, initial, last) in &self.walked.attributes {
            let target = self.graph.target_of(id);
            let halted = |halt| (None, target.to_owned(), halt);
            if let Some(&buffer) = self.constants.get(target) {
                self.contents.constant_holds(self.context, self.program, buffer, last).map_err(halted)?;
            } else if self.held.get(target) != Some(&last) {
                let left = if last == initial { "does not change" } else { "changes" };
                let reason = format!("the graph {left} it, and that the program leaves it so is not followed");
                return Err(halted(Halt::Undecided(reason)));
            }
        }
        Ok(())
    }

    /// The node of a step.
    fn node(&self, index: usize) -> Play<NodeId> {
        let name = &self.program.steps[index].node;
        match self.names.get(&**name) {
            Some(&id) if self.graph.node(id).op != Op::Input => Ok(id),
            _ => different("the graph has no such node"),
        }
    }
}

/// The number of a stream: compute first, then the groups.
fn stream_number(stream: Stream) -> usize {
    match stream {
        Stream::Compute => 0,
        Stream::Comm(group) => group as usize + 1,
    }
}
