//! Reducers whose buckets are memory of a device, as their users have them.

use crate::device::{DeviceGradient, memory_of};
use crate::error::ReducerError;
use crate::options::ReducerOptions;
use crate::param::Param;
use crate::reducer::Reducer;
use crate::shared::{Shared, lock};
use crate::step::{DoneBucket, Marker, Reduced, Step};
use bucketeer_comm::{Backend, Group};
use bucketeer_cuda::{DeviceBuffer, Event, Stream};
use std::sync::Arc;

impl Reducer {
    /// Makes a reducer whose buckets are memory of the device that the group's calls run on, and stay there: gradients are copied
    /// into them on the stream of these calls, or written where they lie, and results are read from them. Neither marks nor
    /// [`finish_on_stream`](Step::finish_on_stream) wait for the device.
    ///
    /// **Streams.** All that the reducer does to a bucket is enqueued on [`stream`](Self::stream), in the order of marks: a mark
    /// whose event is late holds up what comes after it. Other streams wait for [`Reduced::event`] before they read results;
    /// before the next step begins, `stream` waits for an event behind these reads, unless the first mark's event comes after
    /// them anyway and no parameter is left out before it.
    ///
    /// **Slots.** What slots hold moves along when buckets are made again after marks in place; this takes the memory of the
    /// buckets a second time, for a moment. Slots begin as zeros. In local steps the framework adds up in slots, and marks
    /// them in place.
    ///
    /// For where nothing has to be computed on the device but by a collective: sums and means of dense gradients in their own
    /// dtype and order. Who has kernels of his own writes what they make to slots, on [`Marker::stream`] or before an event, and
    /// marks in place: other orders of elements, or another dtype, if parameters are declared in it.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`ReducerError::Invalid`] for a backend whose calls run on no device, a wire dtype, weights, or a
    /// sparse parameter; [`ReducerError::Device`] where the driver refuses, as when memory is short.
    pub fn on_device(
        backend: Arc<dyn Backend>,
        group: &Group,
        params: Vec<Param>,
        options: ReducerOptions,
    ) -> Result<Self, ReducerError> {
        Self::make(backend, group, params, options, None, true)
    }

    /// The stream that buckets are copied to, reduced and read on, if they are on a device. What is enqueued on it comes between
    /// what the reducer enqueued before and what it does afterwards.
    #[must_use]
    pub fn stream(&self) -> Option<&Stream> {
        self.shared.stream()
    }
}

impl Marker {
    /// As [`ready`](Self::ready), for a gradient in memory of the device: copies it into its bucket on the reducer's stream, after
    /// the gradient's [event](DeviceGradient::after), and launches what that completes behind it. Memory that is the
    /// parameter's [`slot`](Self::slot) is marked where it is; whether it was.
    ///
    /// When the gradient's memory may be written again, [`DeviceGradient::copied`] says.
    ///
    /// # Errors
    /// As [`ready`](Self::ready); for buckets of the host, memory of another device, or other strides than the parameter's place
    /// has; for one that is not in its slot where local steps left something there.
    pub fn ready_device(&self, param: usize, gradient: &DeviceGradient<'_>) -> Result<bool, ReducerError> {
        self.step().ready_device(param, gradient)
    }

    /// As [`ready_in_place`](Self::ready_in_place), for a gradient that is in its slot on the device once an event is over. Without
    /// one, `ready_in_place` says that it is there, or was written on the reducer's stream.
    ///
    /// # Errors
    /// As [`ready_device`](Self::ready_device).
    pub fn ready_in_place_after(&self, param: usize, after: &Event) -> Result<(), ReducerError> {
        self.step().ready_in_place_after(param, after)
    }

    /// See [`Reducer::stream`].
    #[must_use]
    pub fn stream(&self) -> Option<&Stream> {
        self.step().shared.stream()
    }
}

impl<'r> Step<'r> {
    /// As [`finish`](Self::finish), without waiting for buckets on a device: they are reduced in the order of the reducer's stream.
    /// A collective that fails is the error of [`Reduced::wait`], or of a later step. Waits all the same where ranks tell one
    /// another what they used: options that allow unused parameters, and the first step of a static graph.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_on_stream(self) -> Result<Reduced<'r>, ReducerError> {
        lock(&self.step().progress).on_stream = true;
        self.finish()
    }
}

impl DoneBucket<'_> {
    /// A parameter's reduced gradient where it lies on the device. It is there.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for another bucket's, or buckets of the host.
    pub fn device(&self, param: usize) -> Result<DeviceBuffer, ReducerError> {
        let (shared, index) = (&self.step.shared, self.index());
        shared.expect_device()?;
        if !self.holds(param) {
            return Err(shared.invalid(format!("parameter {param} is not in bucket {index}")));
        }
        memory_of(&self.step.layout.places[param].slot).map_err(|reason| shared.device_failed(reason))
    }
}

impl Reduced<'_> {
    /// A parameter's reduced gradient where it lies on the device, if it is not [kept](Self::is_kept): there once
    /// [`event`](Self::event) is over, and until the next step begins.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for an index that no parameter has, or buckets of the host.
    pub fn device(&self, param: usize) -> Result<Option<DeviceBuffer>, ReducerError> {
        self.check(param)?;
        let shared = &self.reducer.shared;
        shared.expect_device()?;
        let memory = memory_of(&self.reducer.layout.places[param].slot);
        let memory = memory.map_err(|reason| shared.device_failed(reason))?;
        Ok(Some(memory).filter(|_| !self.is_kept(param)))
    }

    /// An event that is over when all gradients are there: for streams that read them, or the host.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for buckets of the host; [`ReducerError::Device`].
    pub fn event(&self) -> Result<Event, ReducerError> {
        let shared = &self.reducer.shared;
        shared.expect_device()?.record().map_err(|reason| shared.device_failed(reason))
    }

    /// Waits on the host until all buckets have come, after [`finish_on_stream`](Step::finish_on_stream).
    ///
    /// # Errors
    /// As [`Step::finish`].
    pub fn wait(&self) -> Result<(), ReducerError> {
        self.reducer.shared.arrive(true)
    }

    /// See [`Reducer::stream`].
    #[must_use]
    pub fn stream(&self) -> Option<&Stream> {
        self.reducer.stream()
    }
}

impl Shared {
    fn stream(&self) -> Option<&Stream> {
        self.device.as_ref().map(crate::device::OnDevice::stream)
    }

    fn expect_device(&self) -> Result<&crate::device::OnDevice, ReducerError> {
        let reason = "buckets are memory of the host: make the reducer by `on_device`, or copy gradients out";
        self.device.as_ref().ok_or_else(|| self.invalid(reason))
    }
}
