//! The storages of one rank, and what is in flight to them.

use super::tensor::{Tensor, count, dense_strides, for_each_place, span};
use bucketeer::ir::{DType, NodeId};

/// Fills what nobody has written: NaN in every float, -1 in every integer.
pub const POISON: u8 = 0xff;

/// Why a node could not be evaluated; the node's name is added where it is caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeError {
    /// Reads what is in flight from this node.
    ReadsPending(NodeId),
    /// Writes what is in flight from this node.
    WritesPending(NodeId),
    /// This operand is needed as a tensor, but its type is not known.
    Unknown(NodeId),
    /// Arguments or operands do not fit the operator, with the reason.
    Misfit(String),
    /// More than this many bytes would be live at once.
    TooLarge(u64),
    /// Meaning that is not defined here, with the reason.
    Undefined(String),
}

impl NodeError {
    /// A misfit.
    pub fn misfit(reason: impl Into<String>) -> Self {
        Self::Misfit(reason.into())
    }
}

#[derive(Default)]
struct Storage {
    bytes: Vec<u8>,
    /// Values and flights that name it.
    owners: u32,
}

/// A collective's result on its way.
pub struct Flight {
    /// The collective.
    pub node: NodeId,
    /// Where it arrives.
    pub to: Tensor,
    /// What arrives, in logical order.
    pub bytes: Vec<u8>,
    /// What is sent, which nobody may write meanwhile.
    pub from: Tensor,
}

/// Storages and flights of one rank.
#[derive(Default)]
pub struct RankMemory {
    storages: Vec<Storage>,
    flights: Vec<Flight>,
    live: u64,
    limit: u64,
    /// Writes to what a collective in flight sends: the collective, when it was written.
    pub races: Vec<NodeId>,
}

impl RankMemory {
    /// An empty memory of at most this many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether so many elements may be made.
    ///
    /// # Errors
    /// When they would not fit.
    pub fn room(&self, dtype: DType, elements: usize) -> Result<(), NodeError> {
        let bytes = (elements as u64).saturating_mul(dtype.bytes());
        if bytes.saturating_add(self.live) > self.limit { Err(NodeError::TooLarge(self.limit)) } else { Ok(()) }
    }

    /// A tensor in a storage of its own, dense, holding `bytes`.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn dense(&mut self, dtype: DType, sizes: &[usize], bytes: Vec<u8>) -> Result<Tensor, NodeError> {
        self.room(dtype, count(sizes))?;
        debug_assert_eq!(bytes.len() as u64, count(sizes) as u64 * dtype.bytes());
        let strides = dense_strides(sizes);
        Ok(self.adopt(dtype, sizes, strides, bytes))
    }

    /// A tensor in a storage of its own with these strides, holding `bytes` in logical order.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn strided(
        &mut self,
        dtype: DType,
        sizes: &[usize],
        strides: &[usize],
        bytes: &[u8],
    ) -> Result<Tensor, NodeError> {
        let span = span(sizes, strides).ok_or(NodeError::TooLarge(self.limit))?;
        self.room(dtype, span)?;
        let tensor = self.adopt(dtype, sizes, strides.to_vec(), vec![POISON; span * dtype.bytes() as usize]);
        self.store(&tensor, bytes);
        Ok(tensor)
    }

    fn adopt(&mut self, dtype: DType, sizes: &[usize], strides: Vec<usize>, bytes: Vec<u8>) -> Tensor {
        self.live += bytes.len() as u64;
        self.storages.push(Storage { bytes, owners: 0 });
        let storage = self.storages.len() - 1;
        Tensor { storage, dtype, sizes: sizes.to_vec(), strides, offset: 0, device: None }
    }

    /// Bytes of a tensor's storage.
    #[must_use]
    pub fn storage_bytes(&self, tensor: &Tensor) -> usize {
        self.storages[tensor.storage].bytes.len()
    }

    /// Counts an owner.
    pub fn hold(&mut self, tensor: &Tensor) {
        self.storages[tensor.storage].owners += 1;
    }

    /// Uncounts an owner; the last one frees the bytes.
    pub fn drop(&mut self, tensor: &Tensor) {
        let storage = &mut self.storages[tensor.storage];
        storage.owners = storage.owners.saturating_sub(1);
        if storage.owners == 0 {
            self.live -= std::mem::take(&mut storage.bytes).len() as u64;
        }
    }

    /// The elements in logical order.
    ///
    /// # Errors
    /// When some are in flight.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<u8>, NodeError> {
        if let Some(flight) = self.flights.iter().find(|flight| flight.to.overlaps(tensor)) {
            return Err(NodeError::ReadsPending(flight.node));
        }
        // A small window may be expanded to any size.
        self.room(tensor.dtype, tensor.elements())?;
        Ok(self.load(tensor))
    }

    fn load(&self, tensor: &Tensor) -> Vec<u8> {
        let storage = &self.storages[tensor.storage].bytes;
        let width = tensor.width();
        if tensor.elements() == 0 {
            return Vec::new();
        }
        if tensor.is_dense() {
            let start = tensor.offset * width;
            return storage[start..start + tensor.elements() * width].to_vec();
        }
        let mut bytes = Vec::with_capacity(tensor.elements() * width);
        for_each_place(&tensor.sizes, &tensor.strides, tensor.offset, &mut |place| {
            bytes.extend_from_slice(&storage[place * width..(place + 1) * width]);
        });
        bytes
    }

    fn store(&mut self, tensor: &Tensor, bytes: &[u8]) {
        let width = tensor.width();
        debug_assert_eq!(bytes.len(), tensor.elements() * width);
        if bytes.is_empty() {
            return;
        }
        let storage = &mut self.storages[tensor.storage].bytes;
        let mut elements = bytes.chunks_exact(width);
        for_each_place(&tensor.sizes, &tensor.strides, tensor.offset, &mut |place| {
            if let Some(element) = elements.next() {
                storage[place * width..(place + 1) * width].copy_from_slice(element);
            }
        });
    }

    /// Overwrites the elements, given in logical order.
    ///
    /// # Errors
    /// When some are in flight.
    pub fn write(&mut self, tensor: &Tensor, bytes: &[u8]) -> Result<(), NodeError> {
        if let Some(flight) = self.flights.iter().find(|flight| flight.to.overlaps(tensor)) {
            return Err(NodeError::WritesPending(flight.node));
        }
        let sent = self.flights.iter().filter(|flight| flight.from.overlaps(tensor)).map(|flight| flight.node);
        self.races.extend(sent);
        self.store(tensor, bytes);
        Ok(())
    }

    /// Starts a flight: what it will overwrite is poison until it lands.
    ///
    /// # Errors
    /// When something else is in flight to the same place.
    pub fn launch(&mut self, flight: Flight) -> Result<(), NodeError> {
        let poison = vec![POISON; flight.to.elements() * flight.to.width()];
        self.write(&flight.to, &poison)?;
        self.hold(&flight.to);
        self.hold(&flight.from);
        self.flights.push(flight);
        Ok(())
    }

    /// Lets everything in flight to a storage arrive, or everything.
    pub fn land(&mut self, storage: Option<usize>) {
        if self.flights.is_empty() {
            return;
        }
        let arrives = |flight: &Flight| storage.is_none_or(|storage| storage == flight.to.storage);
        let (landing, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flights).into_iter().partition(arrives);
        self.flights = rest;
        for flight in landing {
            self.store(&flight.to, &flight.bytes);
            self.drop(&flight.to);
            self.drop(&flight.from);
        }
    }

    /// Whether something is in flight to a tensor.
    #[must_use]
    pub fn is_pending(&self, tensor: &Tensor) -> bool {
        self.flights.iter().any(|flight| flight.to.overlaps(tensor))
    }
}
