//! Runs a program on a GPU: one [`DeviceExecutor`] for each rank, on a thread of its own.
//!
//! - **Memory.** The arenas of the plan are allocated on the device once and kept, and mirrored on the host.
//! - **Packs, unpacks and copies** are launches of one kernel on the compute stream ([`MoveKernel`]).
//! - **Collectives** of a backend on the device are launched on the groups' streams, on the memory of the device. For a backend
//!   that moves memory of the host, a thread for each group copies what is sent from the device, calls the backend, and
//!   copies what came back, on the group's own stream; a collective in one shot is done on the compute stream.
//! - **Compute steps** are run by the [`Kernels`] on the host, on values that are copied from the device and back.
//! - **Order** between streams is that of events: a step waits for the events of the steps that it has to come after. Waits
//!   that others imply are left out ([`order`]).

mod comm;
mod direct;
mod order;

use super::memory::ProgramMemory;
use super::times::Clock;
use super::{Executor, Kernels, Run, RunError};
use crate::MoveKernel;
use bucketeer::codegen::cuda::{CudaModule, CudaOptions};
use bucketeer::program::lives::Footprint;
use bucketeer::program::{
    BufferKind, Made, Operand, Part, Program, Range, Step, StepId, StepKind, Stream as StreamOf, View,
};
use bucketeer_comm::{Arena, Backend, Buffer, BufferError, Group, Work};
use bucketeer_cuda::nvrtc::{Nvrtc, NvrtcError};
use bucketeer_cuda::{Context, CudaError, DeviceBuffer, Event, Stream};
use bucketeer_eval::Output;
use comm::{Channel, Comm, Job};
use direct::Direct;
use order::{Wait, Waits};
use std::error::Error;
use std::sync::Arc;

/// What a driver's allocation is aligned to.
const DEVICE_ALIGN_BYTES: u64 = 256;

/// One rank's memory on the device and groups for one program; see the module docs.
pub struct DeviceExecutor<'a> {
    /// Groups, and the mirror of the device's memory.
    host: Executor<'a>,
    device: Device,
    compute: Stream,
    /// By group: the stream of its collectives, where there are any.
    comm: Vec<Option<Stream>>,
    kernel: Option<MoveKernel>,
    /// By step: the number of its launch.
    launches: Vec<Option<usize>>,
    /// By step: what its stream waits for.
    waits: Waits,
    /// By step: its event, if a step waits for it.
    events: Vec<Option<Arc<Event>>>,
    /// Where the backend's calls run on the device.
    direct: Option<Direct>,
    /// There, by step: the collective in flight.
    works: Vec<Option<Work>>,
    /// The event wait that a test leaves out, counted from 0.
    left_out: Option<usize>,
}

/// The program's buffers on the device.
struct Device {
    context: Context,
    arenas: Vec<DeviceBuffer>,
    buffers: Vec<DeviceBuffer>,
}

/// An error of the driver's, with all that is behind it.
fn fault(node: &str, error: &dyn Error) -> RunError {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        reason += &format!(": {error}");
        source = error.source();
    }
    RunError::Device { node: node.to_owned(), reason }
}

impl Device {
    fn new(program: &Program, context: &Context) -> Result<Self, RunError> {
        let alloc = |what: &str, bytes: u64| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            context.alloc(bytes).map_err(|error| fault(what, &error))
        };
        let mut arenas = Vec::with_capacity(program.arenas.len());
        for arena in &program.arenas {
            arenas.push(alloc("the plan", arena.bytes)?);
        }
        let mut buffers = Vec::with_capacity(program.buffers.len());
        for buffer in &program.buffers {
            if buffer.align > DEVICE_ALIGN_BYTES {
                let reason =
                    format!("is to lie at a multiple of {} bytes; a device gives {DEVICE_ALIGN_BYTES}", buffer.align);
                return Err(RunError::Device { node: buffer.name.to_string(), reason });
            }
            buffers.push(match buffer.place {
                Some(place) => {
                    let (from, to) = (place.offset as usize, place.offset.saturating_add(buffer.bytes) as usize);
                    let slice = arenas[place.arena as usize].slice(from..to);
                    slice.map_err(|error| fault(&buffer.name, &error))?
                }
                None => alloc(&buffer.name, buffer.bytes)?,
            });
        }
        Ok(Self { context: context.clone(), arenas, buffers })
    }

    /// The bytes of a range, at this rank.
    fn range(&self, memory: &ProgramMemory<'_>, node: &str, range: Range) -> Result<DeviceBuffer, RunError> {
        let held = memory.range(node, range)?;
        // As many bytes from the buffer's start as on the host.
        let start = memory.offset_in(range);
        let slice = self.buffers[range.buffer.0 as usize].slice(start..start + held.bytes() as usize);
        slice.map_err(|error| fault(node, &error))
    }
}

/// The bytes that a view's elements lie in.
fn range_of(program: &Program, view: View) -> Range {
    Footprint::View(view).range(program)
}

/// Memory of the host for what one part of a collective sends and receives: of its own, since several collectives in flight may
/// send the same. Ranges that overlap on the device do so here.
fn staging(memory: &ProgramMemory<'_>, part: &Part) -> Result<(Buffer, Buffer), BufferError> {
    let (send, recv) = (memory.offset_in(part.send) as u64, memory.offset_in(part.recv) as u64);
    let ends = [send.saturating_add(part.send.bytes), recv.saturating_add(part.recv.bytes)];
    if part.send.buffer != part.recv.buffer || send >= ends[1] || recv >= ends[0] {
        let whole = |bytes| Arena::new(bytes)?.buffer(0, bytes);
        return Ok((whole(part.send.bytes)?, whole(part.recv.bytes)?));
    }
    let first = send.min(recv);
    let arena = Arena::new(ends[0].max(ends[1]) - first)?;
    Ok((arena.buffer(send - first, part.send.bytes)?, arena.buffer(recv - first, part.recv.bytes)?))
}

/// The tensors of an operand.
fn views(operand: &Operand) -> Vec<View> {
    let mut found = Vec::new();
    operand.for_each_view(&mut |view| found.push(view));
    found
}

/// The tensors that a step makes.
fn made_views(made: &Made) -> Vec<View> {
    let mut found = Vec::new();
    made.for_each_view(&mut |view| found.push(view));
    found
}

/// Whether the host reads from the device, on the compute stream, before a step.
fn host_reads(program: &Program, step: &Step) -> bool {
    match &step.kind {
        StepKind::Compute(compute) => {
            let mut found = compute.operands.iter().flat_map(views).chain(made_views(&compute.made));
            found.any(|view| range_of(program, view).bytes > 0)
        }
        _ => false,
    }
}

impl<'a> DeviceExecutor<'a> {
    /// Allocates the program's memory on the device and on the host, compiles its kernel, and joins its groups. All ranks do
    /// this, each for itself. Without a compiler, the kernel that comes with the library is taken if it knows enough.
    ///
    /// # Errors
    /// [`RunError`] when there is not enough memory, no kernel, or it is not known who is in a group.
    pub fn new(
        program: &'a Program,
        backend: &'a dyn Backend,
        context: &Context,
        nvrtc: Result<&Nvrtc, &NvrtcError>,
    ) -> Result<Self, RunError> {
        let host = Executor::new(program, backend)?;
        let device = Device::new(program, context)?;
        let cuda = |what: &'static str| move |error: CudaError| fault(what, &error);
        let compute = context.stream().map_err(cuda("a stream"))?;
        let of_group = |group: &Option<Group>| group.as_ref().and_then(|group| backend.stream(group));
        let mut comm: Vec<Option<Stream>> = host.groups.iter().map(of_group).collect();
        let direct = if comm.iter().any(Option::is_some) { Some(Direct::new(program, &device)?) } else { None };
        for step in &program.steps {
            if let StreamOf::Comm(group) = step.stream
                && let stream @ None = &mut comm[group as usize]
            {
                *stream = Some(context.stream().map_err(cuda("a stream"))?);
            }
        }
        let module = CudaModule::of(program, &CudaOptions::default());
        let module = module.map_err(|error| fault("the kernel", &error))?;
        let mut anchors = Vec::with_capacity(module.anchors().len());
        for anchor in module.anchors() {
            let from = Range { buffer: anchor.buffer, offset: 0, bytes: 0, rank_bytes: anchor.rank_bytes };
            let buffer = &device.buffers[anchor.buffer.0 as usize];
            let slice = buffer.slice(host.memory.offset_in(from)..buffer.len());
            anchors.push(slice.map_err(|error| fault("the kernel", &error))?);
        }
        let kernel = MoveKernel::new(&module, anchors, &compute, nvrtc).map_err(|error| fault("the kernel", &error))?;
        let mut launches = vec![None; program.steps.len()];
        for (number, launch) in module.launches().iter().enumerate() {
            launches[launch.step as usize] = Some(number);
        }
        let waits = Waits::of(program, &host.memory, |step| host_reads(program, step), direct.is_none());
        let mut events: Vec<Option<Arc<Event>>> = program.steps.iter().map(|_| None).collect();
        for (_, step) in waits.events() {
            if let event @ None = &mut events[step.0 as usize] {
                *event = Some(Arc::new(context.event().map_err(cuda("an event"))?));
            }
        }
        let executor = Self {
            host,
            device,
            compute,
            comm,
            kernel,
            launches,
            waits,
            events,
            direct,
            works: vec![None; program.steps.len()],
            left_out: None,
        };
        for (index, buffer) in program.buffers.iter().enumerate() {
            if buffer.kind == BufferKind::Constant {
                let buffer = bucketeer::program::BufferId(index as u32);
                executor.store(
                    "a constant",
                    Range { buffer, offset: 0, bytes: program.buffer(buffer).bytes, rank_bytes: 0 },
                )?;
            }
        }
        Ok(executor)
    }

    /// Number of event waits of a run.
    #[doc(hidden)]
    #[must_use]
    pub fn event_waits(&self) -> usize {
        self.waits.events().count()
    }

    /// Leaves one event wait out, for tests that want to see it missed.
    #[doc(hidden)]
    pub fn leave_out(&mut self, wait: Option<usize>) {
        self.left_out = wait;
    }

    /// The node of a step that waits, of the one that it waits for, and the latter's stream: for tests that delay it.
    ///
    /// # Panics
    /// When there are not so many waits.
    #[doc(hidden)]
    #[must_use]
    pub fn event_wait(&self, wait: usize) -> (&str, &str, &Stream) {
        let program = self.host.program;
        let (step, other) = self.waits.events().nth(wait).expect("there are so many waits");
        let [step, other] = [step, other].map(|id| &program.steps[id.0 as usize]);
        let stream = match other.stream {
            StreamOf::Compute => &self.compute,
            StreamOf::Comm(group) => self.comm[group as usize].as_ref().expect("its step is on it"),
        };
        (&step.node, &other.node, stream)
    }

    fn streams(&self) -> Vec<&Stream> {
        std::iter::once(&self.compute).chain(self.comm.iter().flatten()).collect()
    }

    /// Enqueues a copy of a range of the mirror to the device on the compute stream.
    fn store(&self, node: &str, range: Range) -> Result<(), RunError> {
        let to = self.device.range(&self.host.memory, node, range)?;
        let from = self.host.memory.range(node, range)?;
        let held = from.read().map_err(|error| RunError::buffer(format!("`{node}`"), error))?;
        let copied = || {
            let mut staging = self.device.context.alloc_pinned(held.len())?;
            staging.bytes()?.copy_from_slice(&held);
            self.compute.copy_to_device(&staging, 0..held.len(), &to, 0)
        };
        copied().map_err(|error| fault(node, &error))
    }

    /// Copies a range of the device to the mirror, in the compute stream's order, and waits for it.
    fn fetch(&self, node: &str, range: Range) -> Result<(), RunError> {
        let from = self.device.range(&self.host.memory, node, range)?;
        let to = self.host.memory.range(node, range)?;
        let mut held = to.write().map_err(|error| RunError::buffer(format!("`{node}`"), error))?;
        self.compute.download(&from, 0, &mut held).map_err(|error| fault(node, &error))
    }

    fn fetch_operand(&self, node: &str, operand: &Operand) -> Result<(), RunError> {
        views(operand).into_iter().try_for_each(|view| self.fetch(node, range_of(self.host.program, view)))
    }

    /// Runs the program once, on values for its inputs, in order.
    ///
    /// # Errors
    /// [`RunError`], naming the step. Then the groups are aborted, and other ranks are released.
    pub fn run(&mut self, inputs: &[Output], kernels: &mut dyn Kernels) -> Result<Run, RunError> {
        let program = self.host.program;
        self.host.memory.take_inputs(inputs)?;
        for input in &program.inputs {
            let mut found = views(&input.value).into_iter();
            found.try_for_each(|view| self.store(&input.name, range_of(program, view)))?;
        }
        // Collectives may send inputs, and no step says when these are there.
        self.compute.synchronize().map_err(|error| fault("the inputs", &error))?;
        let mut clock = Clock::start(program, &self.host.groups);
        let comm = Comm::new(program.steps.len());
        let (streams, backend) = (self.comm.clone(), self.host.backend);
        let done = std::thread::scope(|scope| {
            let mut channels: Vec<Option<Channel<'a>>> = Vec::with_capacity(self.comm.len());
            for stream in streams.iter().filter(|_| self.direct.is_none()) {
                channels.push(stream.as_ref().map(|stream| comm.worker(scope, stream, backend)));
            }
            let done = self.steps(&comm, &channels, kernels, &mut clock);
            if done.is_err() {
                // Threads may wait for other ranks, and those for this one.
                self.host.groups.iter().flatten().for_each(|group| self.host.backend.abort(group));
            }
            done
        });
        done?;
        self.finish(&mut clock)?;
        self.host.leave_together()?;
        let (times, events) = clock.end();
        for operand in program.outputs.values.iter().chain(program.inputs.iter().map(|input| &input.value)) {
            self.fetch_operand("the output", operand)?;
        }
        let memory = &self.host.memory;
        let outputs = program.outputs.values.iter().map(|value| memory.read_operand(value, "the output"));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let inputs = program.inputs.iter().map(|input| memory.read_operand(&input.value, &input.name));
        let mut unknown = Vec::new();
        super::kernels::unknown(self.host.program, kernels, &mut unknown);
        Ok(Run { outputs, inputs: inputs.collect::<Result<_, _>>()?, times, unknown, events })
    }

    /// Waits for all streams.
    fn finish(&self, clock: &mut Clock<'a>) -> Result<(), RunError> {
        for stream in self.streams() {
            stream.synchronize().map_err(|error| fault("the end of the run", &error))?;
        }
        clock.note_done(|_| true);
        Ok(())
    }

    fn steps(
        &mut self,
        comm: &Comm,
        channels: &[Option<Channel<'a>>],
        kernels: &mut dyn Kernels,
        clock: &mut Clock<'a>,
    ) -> Result<(), RunError> {
        let program = self.host.program;
        let mut waits = 0;
        self.works.fill(None);
        for (index, step) in program.steps.iter().enumerate() {
            let id = StepId(index as u32);
            let mut before = Vec::new();
            for &Wait { step: other, event } in self.waits.of_step(id) {
                // Until a collective's event is recorded, nobody can wait for it.
                if self.direct.is_none() && matches!(program.steps[other.0 as usize].stream, StreamOf::Comm(_)) {
                    let start = std::time::Instant::now();
                    comm.recorded(other)?;
                    clock.waited(other, start);
                }
                if event {
                    if self.left_out != Some(waits) {
                        before.push(other);
                    }
                    waits += 1;
                }
            }
            match step.stream {
                StreamOf::Comm(group) => {
                    let StepKind::Collective(collective) = &step.kind else { continue };
                    let start = std::time::Instant::now();
                    if let Some(direct) = &self.direct {
                        let work = self.launch(direct, id, &before, collective)?;
                        clock.launched(id, start);
                        self.works[index] = work;
                        continue;
                    }
                    let job = self.job(id, before, collective)?;
                    clock.launched(id, start);
                    match &channels[group as usize] {
                        Some(channel) => channel.send(job),
                        None => {
                            let reason = "its group has no stream".to_owned();
                            return Err(RunError::Device { node: step.node.to_string(), reason });
                        }
                    }
                }
                StreamOf::Compute => {
                    for other in before {
                        let event = self.events[other.0 as usize].as_ref();
                        let waited = event.map_or(Ok(()), |event| self.compute.wait(event));
                        waited.map_err(|error| fault(&step.node, &error))?;
                    }
                    self.compute_step(id, kernels, clock)?;
                    if let Some(event) = &self.events[index] {
                        self.compute.record(event).map_err(|error| fault(&step.node, &error))?;
                    }
                }
            }
        }
        if self.direct.is_some() { self.await_all(clock) } else { comm.all_recorded(program) }
    }

    /// What a group's thread does for a collective.
    fn job(
        &self,
        id: StepId,
        before: Vec<StepId>,
        collective: &'a bucketeer::program::Collective,
    ) -> Result<Job<'a>, RunError> {
        let node = &*self.host.program.steps[id.0 as usize].node;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let memory = &self.host.memory;
        let calls = self.host.calls(node, collective, |part| {
            let (send, recv) = staging(memory, part).map_err(|error| RunError::buffer(format!("`{node}`"), error))?;
            sends.push((self.device.range(memory, node, part.send)?, send.clone()));
            receives.push((self.device.range(memory, node, part.recv)?, recv.clone()));
            Ok((send, recv))
        })?;
        let event = |step: &StepId| self.events[step.0 as usize].clone();
        Ok(Job {
            step: id,
            node,
            context: self.device.context.clone(),
            before: before.iter().filter_map(event).collect(),
            sends,
            receives,
            calls,
            done: self.events[id.0 as usize].clone(),
        })
    }

    fn compute_step(&mut self, id: StepId, kernels: &mut dyn Kernels, clock: &mut Clock<'a>) -> Result<(), RunError> {
        let step = &self.host.program.steps[id.0 as usize];
        let node = &*step.node;
        let start = std::time::Instant::now();
        match &step.kind {
            StepKind::Wait(_) => return Ok(()),
            StepKind::Pack(_) | StepKind::Unpack(_) | StepKind::Copy(_) => {
                if let (Some(number), Some(kernel)) = (self.launches[id.0 as usize], &self.kernel) {
                    kernel.launch(&self.compute, number).map_err(|error| fault(node, &error))?;
                }
            }
            StepKind::Collective(collective) => {
                if let Some(direct) = &self.direct {
                    let work = self.launch_in_order(direct, id, collective)?;
                    clock.launched(id, start);
                    self.works[id.0 as usize] = work;
                    return Ok(());
                }
                let job = self.job(id, Vec::new(), collective)?;
                clock.launched(id, start);
                job.run(&self.compute, self.host.backend)?;
                clock.waited(id, start);
                return Ok(());
            }
            // There is no kernel for a program that has such a step, so none comes here.
            StepKind::Run(_) => {
                let reason = "it runs a program of its own, which only memory of the host is for".to_owned();
                return Err(RunError::Unsupported { node: node.to_owned(), reason });
            }
            StepKind::Compute(compute) => {
                compute.operands.iter().try_for_each(|operand| self.fetch_operand(node, operand))?;
                // What is made may not fill its range, and what lies between stays.
                let mut written = made_views(&compute.made);
                written.iter().try_for_each(|view| self.fetch(node, range_of(self.host.program, *view)))?;
                self.host.compute(node, compute, kernels)?;
                for &operand in &compute.writes {
                    if let Some(operand) = compute.operands.get(operand as usize) {
                        written.extend(views(operand));
                    }
                }
                written.iter().try_for_each(|view| self.store(node, range_of(self.host.program, *view)))?;
            }
        }
        clock.ran(id, start);
        let works = &self.works;
        clock.note_done(|step| works[step.0 as usize].as_ref().is_some_and(Work::is_done));
        Ok(())
    }
}
