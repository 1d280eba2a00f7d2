//! Inputs from, and outputs to, `.safetensors` files.
//!
//! Such a file is the length of its header (8 bytes, little-endian), the header (JSON: dtype, shape and range of bytes of each
//! tensor), and the tensors, end to end, each dense and in row-major order.

mod header;
mod write;

pub use write::{OutputFileError, check_outputs, output_names, to_safetensors};

use super::kernels::seeded;
use bucketeer::ir::{DType, GlobalRank};
use bucketeer::program::{Input, Layout, Operand, Program};
use bucketeer_eval::{Output, OutputTensor, Scalar};
use header::{Header, describe};
use safetensors::tensor::{Dtype, TensorInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes of the number that a file begins with.
const LENGTH_BYTES: u64 = 8;
/// The longest header that readers of the format take.
const MOST_HEADER_BYTES: u64 = 100_000_000;
/// What a header holds beside tensors.
const METADATA: &str = "__metadata__";
/// Names that a message lists.
const MOST_NAMES: usize = 5;

/// A file of tensors that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct TensorFileError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub fault: TensorFault,
}

/// What is wrong with a file of tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorFault {
    /// The system cannot read it.
    #[error("it cannot be read: {0}")]
    Io(String),
    /// The file is cut short, or its header says what is not so.
    #[error("found {found}, expected {expected}")]
    File {
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A tensor is not what the header, or the program, makes of it.
    #[error("tensor `{tensor}`: found {found}, expected {expected}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Inputs of the program are not in it.
    #[error("it lacks {}", list(.0))]
    Missing(
        /// Their names.
        Vec<String>,
    ),
    /// An input that is not in it cannot be made from the seed either.
    #[error("tensor `{tensor}` is not in it, and cannot be made: {reason}")]
    Seed {
        /// Its name.
        tensor: String,
        /// Why.
        reason: String,
    },
}

/// `tensor a`, `tensors a, b and 7 more`.
fn list(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(MOST_NAMES).map(|name| format!("`{name}`")).collect();
    let word = if names.len() == 1 { "tensor" } else { "tensors" };
    match names.len().saturating_sub(MOST_NAMES) {
        0 => format!("{word} {}", shown.join(", ")),
        more => format!("{word} {} and {more} more", shown.join(", ")),
    }
}

/// A `.safetensors` file whose header was read and holds for its length. Tensors are read one by one.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    /// Where the tensors begin.
    data_at: u64,
    tensors: BTreeMap<String, TensorInfo>,
}

impl TensorFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`TensorFileError`] for a file that cannot be read, is cut short, or whose header does not fit it.
    pub fn open(path: &Path) -> Result<Self, TensorFileError> {
        Self::try_open(path).map_err(|fault| TensorFileError { file: path.to_owned(), fault })
    }

    fn try_open(path: &Path) -> Result<Self, TensorFault> {
        let found = fs::metadata(path).map_err(io_fault)?;
        // Only a file has a length to hold the header against. A pipe would never open.
        if !found.is_file() {
            return Err(file_fault("something else", "a file"));
        }
        let bytes = found.len();
        let mut file = File::open(path).map_err(io_fault)?;
        let rest = bytes.checked_sub(LENGTH_BYTES);
        let rest = rest.ok_or_else(|| file_fault(format!("{bytes} bytes"), "the length of a header in 8"))?;
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut length).map_err(io_fault)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > rest.min(MOST_HEADER_BYTES) {
            let most = format!("one of at most {} in a file of {bytes}", rest.min(MOST_HEADER_BYTES));
            return Err(file_fault(format!("a header of {header_bytes} bytes"), most));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(io_fault)?;
        let header = serde_json::from_slice::<Header>(&header)
            .map_err(|error| file_fault(format!("a header that cannot be read ({error})"), "JSON of tensors"))?;
        header.check(rest - header_bytes)?;
        Ok(Self { path: path.to_owned(), file, data_at: LENGTH_BYTES + header_bytes, tensors: header.0 })
    }

    /// Names of its tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(|name| &**name)
    }

    /// Names of its tensors that are not inputs of a program, sorted.
    #[must_use]
    pub fn surplus(&self, program: &Program) -> Vec<&str> {
        let inputs: BTreeSet<&str> = program.inputs.iter().map(|input| &*input.name).collect();
        self.names().filter(|name| !inputs.contains(name)).collect()
    }

    /// Values for all inputs of a program, by name, as [`super::Executor::run`] takes them. What is missing is made from a seed
    /// for a rank, as [`super::seeded_inputs`] does, or is an error where none is given.
    ///
    /// An integer that the program was made for need not be there; if it is, as a tensor `i64[]`, it must be the same. What is
    /// given for an input of unknown type is taken as it is.
    ///
    /// # Errors
    /// [`TensorFileError`] when inputs are missing, or are of another dtype or shape; no tensor is read then.
    pub fn inputs(&self, program: &Program, seed: Option<(GlobalRank, u64)>) -> Result<Vec<Output>, TensorFileError> {
        let inputs = || -> Result<_, TensorFault> {
            self.check(program, seed.is_some())?;
            program.inputs.iter().map(|input| self.input(program, input, seed)).collect()
        };
        inputs().map_err(|fault| TensorFileError { file: self.path.clone(), fault })
    }

    /// Whether what a program needs is here and fits.
    fn check(&self, program: &Program, may_lack: bool) -> Result<(), TensorFault> {
        let mut missing = Vec::new();
        for input in &program.inputs {
            match self.tensors.get(&*input.name) {
                Some(info) => fits(program, input, info)?,
                None if may_lack || known(input).is_some() => {}
                None => missing.push(input.name.to_string()),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(TensorFault::Missing(missing)) }
    }

    fn input(&self, program: &Program, input: &Input, seed: Option<(GlobalRank, u64)>) -> Result<Output, TensorFault> {
        let Some(info) = self.tensors.get(&*input.name) else {
            return match (known(input), seed) {
                (Some(value), _) => Ok(value),
                (None, Some((rank, seed))) => seeded(program, input, rank, seed)
                    .map_err(|error| TensorFault::Seed { tensor: input.name.to_string(), reason: error.to_string() }),
                (None, None) => Err(TensorFault::Missing(vec![input.name.to_string()])),
            };
        };
        let tensor = self.tensor(&input.name, info)?;
        let Operand::Int(expected) = input.value else { return Ok(Output::Tensor(tensor)) };
        let found = tensor.bytes.try_into().map_or(0, i64::from_le_bytes);
        if found == expected {
            return Ok(Output::Number(Scalar::Int(found)));
        }
        let expected = format!("{expected}, which the program was made for");
        Err(TensorFault::Tensor { tensor: input.name.to_string(), found: found.to_string(), expected })
    }

    /// Reads a tensor.
    fn tensor(&self, name: &str, info: &TensorInfo) -> Result<OutputTensor, TensorFault> {
        let (begin, end) = info.data_offsets;
        let dtype = dtype_of(info.dtype).ok_or_else(|| {
            let (tensor, found) = (name.to_owned(), describe(info));
            TensorFault::Tensor { tensor, found, expected: "a dtype of PyTorch".to_owned() }
        })?;
        let mut bytes = vec![0; end - begin];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.data_at + begin as u64)).map_err(io_fault)?;
        file.read_exact(&mut bytes).map_err(io_fault)?;
        if dtype == DType::Bool
            && let Some(byte) = bytes.iter().find(|&&byte| byte > 1)
        {
            let (tensor, found) = (name.to_owned(), format!("a bool of {byte}"));
            return Err(TensorFault::Tensor { tensor, found, expected: "0 or 1".to_owned() });
        }
        let shape: Vec<u64> = info.shape.iter().map(|&size| size as u64).collect();
        let dense = Layout::dense(dtype, &shape);
        let strides = dense.iter().flat_map(|layout| &layout.strides).map(|&stride| stride as usize).collect();
        Ok(OutputTensor { dtype, sizes: info.shape.clone(), strides, bytes, device: None, pending: false })
    }
}

fn io_fault(error: io::Error) -> TensorFault {
    TensorFault::Io(error.to_string())
}

fn file_fault(found: impl Into<String>, expected: impl Into<String>) -> TensorFault {
    TensorFault::File { found: found.into(), expected: expected.into() }
}

/// The value of an input that the program was made for.
const fn known(input: &Input) -> Option<Output> {
    match input.value {
        Operand::Int(value) => Some(Output::Number(Scalar::Int(value))),
        Operand::Tensor(_) | Operand::Host(_) | Operand::Tuple(_) => None,
    }
}

/// Holds a tensor of a file against an input.
fn fits(program: &Program, input: &Input, info: &TensorInfo) -> Result<(), TensorFault> {
    let (dtype, shape) = match &input.value {
        Operand::Tensor(view) => (program.layout(view.layout).dtype, &program.layout(view.layout).shape[..]),
        Operand::Int(_) => (DType::I64, &[][..]),
        Operand::Host(_) | Operand::Tuple(_) => return Ok(()),
    };
    let same = info.shape.iter().map(|&size| size as u64).eq(shape.iter().copied());
    if same && dtype_of(info.dtype) == Some(dtype) {
        return Ok(());
    }
    let expected = format!("{}{shape:?}", dtype.short_name());
    Err(TensorFault::Tensor { tensor: input.name.to_string(), found: describe(info), expected })
}

/// Our dtypes and the format's; 4-bit floats are counted otherwise there, and two complex dtypes are not in it.
const DTYPES: [(DType, Dtype); 19] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::Bf16, Dtype::BF16),
    (DType::F8E4m3fn, Dtype::F8_E4M3),
    (DType::F8E5m2, Dtype::F8_E5M2),
    (DType::F8E4m3fnuz, Dtype::F8_E4M3FNUZ),
    (DType::F8E5m2fnuz, Dtype::F8_E5M2FNUZ),
    (DType::F8E8m0fnu, Dtype::F8_E8M0),
    (DType::C64, Dtype::C64),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U16, Dtype::U16),
    (DType::U8, Dtype::U8),
    (DType::Bool, Dtype::BOOL),
];

fn dtype_of(stored: Dtype) -> Option<DType> {
    DTYPES.iter().find(|(_, theirs)| *theirs == stored).map(|(ours, _)| *ours)
}

fn stored_as(dtype: DType) -> Option<Dtype> {
    DTYPES.iter().find(|(ours, _)| *ours == dtype).map(|(_, theirs)| *theirs)
}
