//! Collectives of device memory, by a backend whose calls run on the device: each is launched on its group's stream, and order
//! is that of events alone.

use super::super::{Calls, RunError};
use super::{Device, DeviceExecutor, fault};
use crate::times::Clock;
use bucketeer::program::{Collective, Part, Program, Range, StepId};
use bucketeer_comm::{Arena, Buffer, Work};
use bucketeer_cuda::Stream;
use std::time::Instant;

/// The program's buffers, as the backend takes them.
pub(super) struct Direct {
    buffers: Vec<Buffer>,
}

impl Direct {
    pub fn new(program: &Program, device: &Device) -> Result<Self, RunError> {
        let fault = |what: &str| {
            let what = what.to_owned();
            move |error| RunError::buffer(what, error)
        };
        let arenas = device.arenas.iter().map(|memory| Arena::on_device(memory.clone()));
        let arenas = arenas.collect::<Result<Vec<_>, _>>().map_err(fault("the plan"))?;
        let mut buffers = Vec::with_capacity(program.buffers.len());
        for (buffer, memory) in program.buffers.iter().zip(&device.buffers) {
            let lent = match buffer.place {
                Some(place) => arenas[place.arena as usize].buffer(place.offset, buffer.bytes),
                None => Arena::on_device(memory.clone()).and_then(|arena| arena.buffer(0, buffer.bytes)),
            };
            buffers.push(lent.map_err(fault(&buffer.name))?);
        }
        Ok(Self { buffers })
    }
}

impl<'a> DeviceExecutor<'a> {
    fn calls(&self, direct: &Direct, node: &str, collective: &Collective) -> Result<Calls, RunError> {
        let memory = &self.host.memory;
        let part = |range: Range| {
            let part = direct.buffers[range.buffer.0 as usize].part(memory.offset_in(range) as u64, range.bytes);
            part.map_err(|error| RunError::buffer(format!("`{node}`"), error))
        };
        self.host.calls(node, collective, |of: &Part| Ok((part(of.send)?, part(of.recv)?)))
    }

    /// What comes before the calls.
    fn prepare(stream: &Stream, node: &str, calls: &Calls) -> Result<(), RunError> {
        for zeros in calls.zeros.iter().filter_map(Buffer::device) {
            stream.fill(&zeros, 0..zeros.len(), 0).map_err(|error| fault(node, &error))?;
        }
        for (from, to) in &calls.copies {
            if let (Some(from), Some(to)) = (from.device(), to.device()) {
                stream.copy(&from, 0..from.len(), &to, 0).map_err(|error| fault(node, &error))?;
            }
        }
        Ok(())
    }

    /// Launches a collective after some steps, on its group's stream, and records its event.
    pub(super) fn launch(
        &self,
        direct: &Direct,
        id: StepId,
        before: &[StepId],
        collective: &Collective,
    ) -> Result<Option<Work>, RunError> {
        let node = &*self.host.program.steps[id.0 as usize].node;
        let calls = self.calls(direct, node, collective)?;
        let stream = self.stream_of(node, collective)?;
        for event in before.iter().filter_map(|step| self.events[step.0 as usize].as_ref()) {
            stream.wait(event).map_err(|error| fault(node, &error))?;
        }
        Self::prepare(stream, node, &calls)?;
        let work = calls.start(node, self.host.backend)?;
        if let Some(event) = &self.events[id.0 as usize] {
            stream.record(event).map_err(|error| fault(node, &error))?;
        }
        Ok(work)
    }

    /// Launches a collective in the compute stream's order.
    pub(super) fn launch_in_order(
        &self,
        direct: &Direct,
        id: StepId,
        collective: &Collective,
    ) -> Result<Option<Work>, RunError> {
        let node = &*self.host.program.steps[id.0 as usize].node;
        let calls = self.calls(direct, node, collective)?;
        let stream = self.stream_of(node, collective)?;
        let follow = |first: &Stream, then: &Stream| {
            let event = self.device.context.event()?;
            first.record(&event)?;
            then.wait(&event)
        };
        follow(&self.compute, stream).map_err(|error| fault(node, &error))?;
        Self::prepare(stream, node, &calls)?;
        let work = calls.start(node, self.host.backend)?;
        follow(stream, &self.compute).map_err(|error| fault(node, &error))?;
        Ok(work)
    }

    fn stream_of(&self, node: &str, collective: &Collective) -> Result<&Stream, RunError> {
        self.comm[collective.group as usize]
            .as_ref()
            .ok_or_else(|| RunError::Device { node: node.to_owned(), reason: "its group has no stream".to_owned() })
    }

    /// Waits for all calls: errors between ranks are told here.
    pub(super) fn await_all(&mut self, clock: &mut Clock<'a>) -> Result<(), RunError> {
        for (id, step) in (0..).zip(&self.host.program.steps) {
            let Some(work) = self.works[id as usize].take() else { continue };
            let start = Instant::now();
            let done = work.wait(None);
            clock.waited(StepId(id), start);
            done.map_err(|error| RunError::comm(&step.node, error))?;
        }
        Ok(())
    }
}
