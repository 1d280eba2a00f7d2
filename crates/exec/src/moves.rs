//! The kernel of a program's packs, unpacks and copies, loaded for one device and bound to its buffers.
//!
//! [`MoveKernel::new`] compiles it for the device's own architecture where there is a compiler, else takes the fixed kernel that
//! comes with us as PTX. Every transfer is held against the lengths of its buffers, so that launches are safe.

#![expect(unsafe_code, reason = "launches of our own kernel, whose every access is checked beforehand")]

use bucketeer::codegen::Transfer;
use bucketeer::codegen::cuda::{CudaModule, FIXED_KERNEL, FIXED_PTX, THREADS};
use bucketeer::codegen::transfer::{Loop, Unit};
use bucketeer_cuda::nvrtc::{Nvrtc, NvrtcError, Request};
use bucketeer_cuda::{Arg, Context, CudaError, DeviceBuffer, Function, Image, ImageKind, Launch, Stream};

/// Blocks that a multiprocessor is given at most; those that find it full wait.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The driver refuses something.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// It does not compile.
    #[error("the kernel does not compile: {0}")]
    Compile(#[source] Box<NvrtcError>),
    /// Without a compiler only common units can be moved.
    #[error(
        "`{launch}` moves {unit:?}, which the kernel that comes with this library does not know, and there is no compiler: {nvrtc}"
    )]
    NoCompiler {
        /// The launch.
        launch: String,
        /// What is not known.
        unit: Unit,
        /// Why NVRTC is not there.
        nvrtc: String,
    },
    /// A transfer reaches beyond its buffer.
    #[error("`{launch}` reaches byte {end} of anchor {anchor}, which has {bytes} from there")]
    Outside {
        /// The launch.
        launch: String,
        /// The anchor.
        anchor: u32,
        /// One past the last byte.
        end: u64,
        /// Bytes behind the anchor.
        bytes: u64,
    },
}

/// See the module docs.
#[derive(Debug)]
pub struct MoveKernel {
    function: Function,
    /// Addresses of the anchors.
    table: DeviceBuffer,
    /// What the anchors are in.
    buffers: Vec<DeviceBuffer>,
    launches: Vec<Prepared>,
}

/// A launch.
#[derive(Debug)]
struct Prepared {
    blocks: u32,
    /// Anchors that it uses.
    anchors: Vec<u32>,
    tables: Given,
}

/// A launch's tables.
#[derive(Debug)]
struct Given {
    segments: DeviceBuffer,
    loops: DeviceBuffer,
    count: u64,
    tiles: u64,
}

impl MoveKernel {
    /// Compiles and loads the kernel, and writes its tables to the device. `anchors` has, for each anchor of the module, the bytes
    /// from its address on. `stream` carries the tables, and is waited for. `None` if there is nothing to launch.
    ///
    /// # Errors
    /// [`MoveError`].
    pub fn new(
        module: &CudaModule,
        anchors: Vec<DeviceBuffer>,
        stream: &Stream,
        nvrtc: Result<&Nvrtc, &NvrtcError>,
    ) -> Result<Option<Self>, MoveError> {
        let context = stream.context();
        for buffer in &anchors {
            context.expect_same(buffer.context(), "MoveKernel::new", "buffer")?;
        }
        for launch in module.launches() {
            launch.transfers.iter().try_for_each(|transfer| check(&launch.name, transfer, &anchors))?;
        }
        if module.launches().is_empty() {
            return Ok(None);
        }
        let (function, fixed) = match nvrtc {
            Ok(nvrtc) => (compile(context, nvrtc, module)?, false),
            Err(error) => (fixed(context, module, error)?, true),
        };
        let addresses: Vec<u8> = anchors.iter().flat_map(|buffer| buffer.pointer().to_le_bytes()).collect();
        let table = context.alloc(addresses.len())?;
        stream.upload(&addresses, &table, 0)?;
        let most_blocks = context.device().multiprocessors()?.saturating_mul(BLOCKS_PER_MULTIPROCESSOR);
        let mut launches = Vec::with_capacity(module.launches().len());
        for (number, launch) in module.launches().iter().enumerate() {
            let mut used: Vec<u32> =
                launch.transfers.iter().flat_map(|each| [each.from.anchor, each.to.anchor]).collect();
            used.sort_unstable();
            used.dedup();
            let tables = match CudaModule::fixed_tables(launch) {
                Some(tables) if fixed => tables,
                _ => module.tables(number),
            };
            let given = Given {
                segments: context.alloc(tables.segments.len())?,
                loops: context.alloc(tables.loops.len())?,
                count: tables.count,
                tiles: tables.tiles,
            };
            stream.upload(&tables.segments, &given.segments, 0)?;
            stream.upload(&tables.loops, &given.loops, 0)?;
            launches.push(Prepared { blocks: launch.blocks(most_blocks), anchors: used, tables: given });
        }
        Ok(Some(Self { function, table, buffers: anchors, launches }))
    }

    /// Enqueues the module's launch of that number.
    ///
    /// # Errors
    /// When the driver refuses.
    ///
    /// # Panics
    /// When the module has no such launch.
    pub fn launch(&self, stream: &Stream, number: usize) -> Result<(), CudaError> {
        let prepared = &self.launches[number];
        for &anchor in &prepared.anchors {
            self.buffers[anchor as usize].used_on(stream);
        }
        let Given { segments, loops, count, tiles } = &prepared.tables;
        let args =
            [Arg::Buffer(&self.table), Arg::Buffer(segments), Arg::Buffer(loops), Arg::U64(*count), Arg::U64(*tiles)];
        // SAFETY: the kernel is ours, with three pointers and two numbers. It reads the tables, which have as many rows as it is told
        // and an address for each anchor, and touches what the launch's transfers say: in buffers that were told of the stream,
        // and within their lengths, as `check` found.
        unsafe { stream.launch(&self.function, Launch::linear(prepared.blocks, THREADS), &args) }
    }
}

fn compile(context: &Context, nvrtc: &Nvrtc, module: &CudaModule) -> Result<Function, MoveError> {
    let request = Request {
        source: &module.table_source(),
        name: "bucketeer_move.cu",
        arch: context.device().arch()?,
        kind: ImageKind::Cubin,
        options: &[],
    };
    let compiled = nvrtc.compile(&request).map_err(|error| MoveError::Compile(Box::new(error)))?;
    Ok(context.load_module(&compiled.image)?.function(FIXED_KERNEL)?)
}

fn fixed(context: &Context, module: &CudaModule, error: &NvrtcError) -> Result<Function, MoveError> {
    let known = bucketeer::codegen::cuda::fixed_units();
    for launch in module.launches() {
        if let Some(unknown) = launch.transfers.iter().find(|transfer| !known.contains(&transfer.unit)) {
            let nvrtc = error.to_string();
            return Err(MoveError::NoCompiler { launch: launch.name.clone(), unit: unknown.unit, nvrtc });
        }
    }
    let image = Image::new(FIXED_PTX.as_bytes().to_vec());
    let image = image.map_err(|error| CudaError::invalid("MoveKernel::new", error.to_string()))?;
    Ok(context.load_module(&image)?.function(FIXED_KERNEL)?)
}

/// Holds a transfer against its buffers.
fn check(launch: &str, transfer: &Transfer, anchors: &[DeviceBuffer]) -> Result<(), MoveError> {
    let (read, written) = match transfer.unit {
        Unit::Move(bytes) => (bytes, bytes),
        Unit::Zero(bytes) => (0, bytes),
        Unit::Convert(unit) => (unit.elements * unit.from.bytes(), unit.elements * unit.to.bytes()),
    };
    let step = |side: usize, each: &Loop| if side == 0 { each.from } else { each.to };
    let sides = [(transfer.from, read), (transfer.to, written)];
    for (side, (address, unit)) in sides.into_iter().enumerate().filter(|(_, (_, unit))| *unit > 0) {
        let first = address.offset.checked_add(unit);
        let end = transfer.loops.iter().try_fold(first, |end, each| {
            let further = each.size.checked_sub(1)?.checked_mul(step(side, each))?;
            Some(end.and_then(|end| end.checked_add(further)))
        });
        let bytes = anchors.get(address.anchor as usize).map_or(0, |buffer| buffer.len() as u64);
        match end.flatten() {
            Some(end) if end <= bytes => {}
            end => {
                let end = end.unwrap_or(u64::MAX);
                return Err(MoveError::Outside { launch: launch.to_owned(), anchor: address.anchor, end, bytes });
            }
        }
    }
    Ok(())
}
