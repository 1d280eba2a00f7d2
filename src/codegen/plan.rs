//! The host's side of a program on a device, as JSON: memory, kernels and launches, for toolchains that drive them.

use super::cuda::{CudaModule, KERNEL, THREADS, WARPS};
use super::transfer::Anchor;
use crate::ir::ReduceOp;
use crate::program::{Arena, Buffer, CommOp, Program, StepId, StepKind, Stream};
#[cfg(feature = "serde")]
use serde::Serialize;

/// What a host does: allocate the arenas, put the address of each anchor into a table on the device, then the steps in
/// order, each on its stream. `docs/cuda.md` says it step by step.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct LaunchPlan<'a> {
    /// Bytes of all arenas.
    pub peak_bytes: u64,
    /// The sum of the arenas' largest live sets.
    pub live_bytes: u64,
    /// Allocations.
    pub arenas: &'a [Arena],
    /// What lies in them, and what the caller gives.
    pub buffers: &'a [Buffer],
    /// Entry `i` of the table: the buffer's address, and so many bytes for each rank before this one in its group.
    pub anchors: &'a [Anchor],
    /// Threads of a block.
    pub threads: u32,
    /// Tiles that a block moves at once: no launch needs more blocks than tiles by this.
    pub tiles_per_block: u64,
    /// The kernel's name in the source. It takes the address of the table of anchors, and the number of a launch.
    pub kernel: &'static str,
    /// Launches of the kernel, in step order.
    pub launches: Vec<Launch<'a>>,
    /// Steps, in issue order.
    pub steps: Vec<StepPlan<'a>>,
}

/// A launch of the kernel.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Launch<'a> {
    /// The name of its tables in the source.
    pub name: &'a str,
    /// Index of its step.
    pub step: u32,
    /// Tiles: warps that have something to do.
    pub tiles: u64,
    /// Bytes read and written.
    pub moved_bytes: u64,
}

/// A step.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct StepPlan<'a> {
    /// The graph's node.
    pub node: &'a str,
    /// Where it runs.
    pub stream: Stream,
    /// Steps of other streams that have to be done: their events are waited for.
    pub after: &'a [StepId],
    /// What it does.
    pub action: Action<'a>,
}

/// What a host does for a step.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Action<'a> {
    /// Launch the kernel: the number of the launch.
    Launch(usize),
    /// Nothing: the step moves no bytes.
    Nothing,
    /// Anything else: as `lower --emit json` has it.
    Step(std::borrow::Cow<'a, StepKind>),
}

impl<'a> LaunchPlan<'a> {
    /// For a program and the module that was made of it.
    #[must_use]
    pub fn of(program: &'a Program, module: &'a CudaModule) -> Self {
        let launches = module.launches().iter().map(|launch| Launch {
            name: &launch.name,
            step: launch.step,
            tiles: launch.tiles,
            moved_bytes: launch.moved_bytes,
        });
        let mut next = 0;
        let steps = program.steps.iter().enumerate().map(|(index, step)| {
            let action = match &step.kind {
                StepKind::Pack(_) | StepKind::Unpack(_) | StepKind::Copy(_) => {
                    if module.launches().get(next).is_some_and(|launch| launch.step as usize == index) {
                        next += 1;
                        Action::Launch(next - 1)
                    } else {
                        Action::Nothing
                    }
                }
                kind if module.summed().contains(&StepId(index as u32)) => {
                    Action::Step(std::borrow::Cow::Owned(summed(kind)))
                }
                kind => Action::Step(std::borrow::Cow::Borrowed(kind)),
            };
            StepPlan { node: &step.node, stream: step.stream, after: &step.after, action }
        });
        Self {
            peak_bytes: program.peak_bytes(),
            live_bytes: program.live_bytes(),
            arenas: &program.arenas,
            buffers: &program.buffers,
            anchors: module.anchors(),
            threads: THREADS,
            tiles_per_block: WARPS,
            kernel: KERNEL,
            launches: launches.collect(),
            steps: steps.collect(),
        }
    }

    /// As JSON text, with a line feed at its end.
    ///
    /// # Panics
    /// Never: all of it has a form in JSON.
    #[cfg(feature = "serde")]
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a plan is JSON") + "\n"
    }
}

/// A collective whose average a kernel divides.
fn summed(kind: &StepKind) -> StepKind {
    let mut kind = kind.clone();
    if let StepKind::Collective(collective) = &mut kind {
        match &mut collective.op {
            CommOp::AllReduce(op) | CommOp::ReduceScatter(op) | CommOp::Reduce { op, .. } => *op = ReduceOp::Sum,
            _ => {}
        }
    }
    kind
}
