//! Gradients in memory of a device: what is enqueued at a mark, and what is put back at the end. The host waits for nothing.

use super::{InStep, Progress};
use crate::device::OnDevice;
use crate::error::ReducerError;
use crate::shared::lock;
use std::sync::atomic::Ordering;

#[cfg(feature = "nccl")]
use super::Claim;
#[cfg(feature = "nccl")]
use crate::device::{DeviceGradient, memory_of};
#[cfg(feature = "nccl")]
use crate::param::same_order;
#[cfg(feature = "nccl")]
use bucketeer_cuda::{DeviceBuffer, Event};

#[cfg(feature = "nccl")]
impl InStep {
    /// A gradient in memory of a device; whether it is in its slot.
    pub fn ready_device(&self, param: usize, gradient: &DeviceGradient<'_>) -> Result<bool, ReducerError> {
        let mut in_place = false;
        self.mark(param, || {
            let (device, slot) = self.device_slot(param, gradient.memory)?;
            let refuse = |reason| self.refuse(param, reason);
            device.expect_here(gradient).map_err(refuse)?;
            self.check_device_layout(param, gradient)?;
            in_place = !slot.is_empty() && gradient.memory.pointer() == slot.pointer();
            if !in_place && self.accumulated.has(param) {
                let reason = "local steps left a gradient in its slot, and nothing adds to it on the device: add to the slot, \
                              and mark it in place";
                return Err(self.refuse(param, reason));
            }
            let claim = self.claim(param)?;
            if claim == Claim::Take {
                let taken = match in_place {
                    true => gradient.after.map_or(Ok(()), |event| device.wait(event)),
                    false => device.take(gradient, &slot),
                };
                taken.map_err(refuse).inspect_err(|_| self.give_back(param))?;
                if in_place {
                    self.accumulated.in_place.store(true, Ordering::Relaxed);
                }
            }
            self.is_ready(param, claim, true)
        })?;
        Ok(in_place)
    }

    /// A gradient that is in its slot once an event is over.
    pub fn ready_in_place_after(&self, param: usize, after: &Event) -> Result<(), ReducerError> {
        let slot = self.layout.places.get(param).and_then(|place| place.slot.device());
        match slot {
            Some(slot) => self.ready_device(param, &DeviceGradient::new(&slot).after(after)).map(drop),
            // Says why not.
            None => self.mark(param, || {
                Err(self.refuse(param, "its bucket is memory of the host, which no event of a device is about"))
            }),
        }
    }

    /// The device of the buckets, and a parameter's memory there.
    fn device_slot(&self, param: usize, memory: &DeviceBuffer) -> Result<(&OnDevice, DeviceBuffer), ReducerError> {
        let Some(device) = &self.shared.device else {
            let gpu = memory.context().device().ordinal();
            return Err(self.refuse(
                param,
                format!(
                    "its gradient is memory of GPU {gpu}, and its bucket the host's: a parameter that moved to a device needs \
                     a reducer that was made by `on_device`"
                ),
            ));
        };
        let slot = memory_of(&self.layout.places[param].slot).map_err(|reason| self.refuse(param, reason))?;
        Ok((device, slot))
    }

    /// That a gradient's bytes are those of its slot.
    fn check_device_layout(&self, param: usize, gradient: &DeviceGradient<'_>) -> Result<(), ReducerError> {
        let what = &self.shared.params[param];
        let (found, wanted) = (gradient.memory.len() as u64, what.bytes());
        let place = what.place_strides();
        if let Some(strides) = gradient.strides
            && (strides.len() != place.len() || !same_order(what.shape(), strides, &place))
        {
            return Err(self.refuse(
                param,
                format!(
                    "its gradient has strides {strides:?}, and its place in the bucket {place:?}; nothing reorders elements on \
                     the device: give it in that order, or write it to its slot and mark it in place"
                ),
            ));
        }
        if found != wanted {
            return Err(self.refuse(param, format!("its gradient has {found} bytes; {what} has {wanted}")));
        }
        Ok(())
    }
}

impl InStep {
    /// Refuses a gradient of the host where buckets are on a device.
    pub(super) fn expect_host(&self, param: usize) -> Result<(), ReducerError> {
        let Some(device) = &self.shared.device else { return Ok(()) };
        let gpu = device.gpu();
        Err(self.refuse(
            param,
            format!(
                "its gradient is memory of the host, and its bucket that of GPU {gpu}: give it by `ready_device`; a parameter \
                 that moved to the host needs another reducer"
            ),
        ))
    }

    /// As `leave_out`, on the device: zeros, or what local steps left.
    pub(super) fn leave_out_on(&self, device: &OnDevice, param: usize) -> Result<(), ReducerError> {
        if self.accumulated.has(param) {
            self.used[param].store(true, Ordering::Relaxed);
            return Ok(());
        }
        let slot = &self.layout.places[param].slot;
        let saved = match self.accumulated.in_place.load(Ordering::Relaxed) {
            true => device.save(slot).map(Some),
            false => Ok(None),
        };
        let left = saved.and_then(|saved| device.zero(slot).map(|()| saved));
        let failed = |reason| {
            let (step, name) = (self.number, self.shared.named(param));
            self.shared.fail(self.shared.device_failed(format!("step {step}, {name}: {reason}")), step)
        };
        if let Some(saved) = left.map_err(failed)? {
            lock(&self.progress).saved_on_device.push((param, saved));
        }
        Ok(())
    }

    /// Puts back what is kept.
    pub(super) fn restore_on_device(&self, progress: &mut Progress, kept: &[bool]) -> Result<(), ReducerError> {
        let Some(device) = &self.shared.device else { return Ok(()) };
        for (param, saved) in std::mem::take(&mut progress.saved_on_device) {
            if kept[param] {
                let restored = device.restore(&saved, &self.layout.places[param].slot);
                restored.map_err(|reason| self.shared.device_failed(reason))?;
            }
        }
        Ok(())
    }
}
