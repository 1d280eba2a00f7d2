//! Results as a `.safetensors` file.

use super::{METADATA, stored_as};
use bucketeer::ir::{DType, Graph, Op};
use bucketeer::program::{Operand, Program};
use bucketeer_eval::{Output, Scalar};
use safetensors::tensor::{Dtype, View};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Why results cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputFileError {
    /// A result that the format has no place for.
    #[error("output `{name}` is {found}, which a .safetensors file cannot hold")]
    Unsupported {
        /// Its name.
        name: String,
        /// What it is.
        found: String,
    },
    /// There is too much of it.
    #[error("the outputs do not fit into one .safetensors file: {0}")]
    Format(String),
}

impl OutputFileError {
    fn unsupported(name: &str, found: impl Into<String>) -> Self {
        Self::Unsupported { name: name.to_owned(), found: found.into() }
    }
}

/// Names of a graph's results, in order: those of the nodes that make them.
#[must_use]
pub fn output_names(graph: &Graph) -> Vec<&str> {
    let output = graph.order().iter().find(|&&id| graph.node(id).op == Op::Output);
    let values = output.map_or(&[][..], |&id| graph.operands(id));
    values.iter().map(|&id| graph.name_of(id)).collect()
}

/// Whether a file can hold a program's results, as far as is known before it runs. Names are of the results, in order.
///
/// # Errors
/// [`OutputFileError::Unsupported`], for the first that it cannot hold.
pub fn check_outputs(program: &Program, names: &[&str]) -> Result<(), OutputFileError> {
    fn check(program: &Program, name: &str, value: &Operand) -> Result<(), OutputFileError> {
        match value {
            Operand::Tensor(view) => stored_dtype(name, program.layout(view.layout).dtype).map(|_| ()),
            Operand::Tuple(items) => {
                items.iter().enumerate().try_for_each(|(at, item)| check(program, &format!("{name}.{at}"), item))
            }
            Operand::Int(_) | Operand::Host(_) => Ok(()),
        }
    }
    names.iter().zip(&program.outputs.values).try_for_each(|(name, value)| check(program, name, value))
}

/// A rank's results as the bytes of a `.safetensors` file. Names are of the results, in order; those that come again get `.2`,
/// `.3` behind them, and parts of a tuple their place, from `.0`. Numbers become tensors without dimensions: `i64[]`, `f64[]`
/// or `b8[]`.
///
/// # Errors
/// [`OutputFileError`] for a result that the format cannot hold.
pub fn to_safetensors(names: &[&str], outputs: &[Output]) -> Result<Vec<u8>, OutputFileError> {
    let mut tensors = Vec::new();
    for (name, output) in names.iter().zip(outputs) {
        store(name, output, &mut tensors)?;
    }
    make_unique(&mut tensors);
    safetensors::serialize(tensors, None).map_err(|error| OutputFileError::Format(error.to_string()))
}

/// A tensor as the format takes it.
struct Stored<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    bytes: Cow<'a, [u8]>,
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn stored_dtype(name: &str, dtype: DType) -> Result<Dtype, OutputFileError> {
    stored_as(dtype).ok_or_else(|| OutputFileError::unsupported(name, format!("of dtype {}", dtype.short_name())))
}

/// Adds the tensors of a result.
fn store<'a>(name: &str, output: &'a Output, to: &mut Vec<(String, Stored<'a>)>) -> Result<(), OutputFileError> {
    if name == METADATA {
        return Err(OutputFileError::unsupported(name, "named as the format's own entry"));
    }
    let stored = match output {
        Output::Tensor(tensor) => {
            let dtype = stored_dtype(name, tensor.dtype)?;
            Stored { dtype, shape: &tensor.sizes, bytes: Cow::Borrowed(&tensor.bytes) }
        }
        Output::Number(number) => {
            let (dtype, bytes) = match number {
                Scalar::Bool(value) => (Dtype::BOOL, vec![u8::from(*value)]),
                Scalar::Int(value) => (Dtype::I64, value.to_le_bytes().to_vec()),
                Scalar::Float(value) => (Dtype::F64, value.to_le_bytes().to_vec()),
            };
            Stored { dtype, shape: &[], bytes: Cow::Owned(bytes) }
        }
        Output::Tuple(items) => {
            let mut items = items.iter().enumerate();
            return items.try_for_each(|(at, item)| store(&format!("{name}.{at}"), item, to));
        }
        Output::Opaque(_) => return Err(OutputFileError::unsupported(name, "of unknown type")),
    };
    to.push((name.to_owned(), stored));
    Ok(())
}

/// Puts `.2`, `.3` behind names that come again, past those that are taken.
fn make_unique(tensors: &mut [(String, Stored<'_>)]) {
    let plain: HashSet<String> = tensors.iter().map(|(name, _)| name.clone()).collect();
    let mut taken: HashSet<String> = HashSet::new();
    let mut next: HashMap<String, u64> = HashMap::new();
    for (name, _) in tensors {
        if taken.insert(name.clone()) {
            continue;
        }
        let count = next.entry(name.clone()).or_insert(1);
        let unique = loop {
            *count += 1;
            let unique = format!("{name}.{count}");
            if !plain.contains(&unique) && taken.insert(unique.clone()) {
                break unique;
            }
        };
        *name = unique;
    }
}
