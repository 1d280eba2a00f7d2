//! What can be wrong with FX text, and with a graph that is to become FX text.

/// A fault in FX text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FxError {
    /// Line of the file, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The start of what stands there.
    pub found: String,
    /// What would have been right.
    pub expected: String,
    /// What is wrong, where a sentence says it better than `found` and `expected`.
    pub problem: Option<String>,
    /// The line, cut to about 200 characters around the column.
    pub source_line: String,
    /// Characters of `source_line` before the fault.
    pub caret: usize,
}

impl std::fmt::Display for FxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}: ", self.line, self.column)?;
        match &self.problem {
            Some(problem) => f.write_str(problem),
            None => write!(f, "found `{}`, expected {}", self.found, self.expected),
        }
    }
}

impl std::error::Error for FxError {}

/// Why a graph cannot be said in FX text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FxPrintError {
    /// What is called is no operator of PyTorch or Python.
    #[error("`{node}` is a call of `{target}`; FX text has no such operator")]
    Target {
        /// The node.
        node: String,
        /// What it calls.
        target: String,
    },
    /// FX names are Python identifiers.
    #[error("`{0}` is not a Python identifier, which FX text needs as a name")]
    Name(String),
    /// FX text has no word for loops, branches and calls of this graph's kind.
    #[error("`{0}` stands in a region; FX text has none")]
    Region(String),
    /// PyTorch's functional collectives gather and scatter along the first dimension only.
    #[error("`{node}` works along dimension {dim}; PyTorch's collectives work along dimension 0 only")]
    Dimension {
        /// The collective.
        node: String,
        /// Its dimension.
        dim: u32,
    },
    /// PyTorch's gloo backend gathers a list of tensors as if all had the dtype of one, so none is written.
    #[error("`{0}` gathers tensors of several dtypes in one launch, which PyTorch's gloo backend computes wrongly")]
    MixedGather(String),
    /// An operator's group size argument is not known.
    #[error("`{node}` needs the size of group `{group}`, which the graph does not state")]
    GroupSize {
        /// The collective.
        node: String,
        /// Its group.
        group: String,
    },
    /// Too few arguments or operands for what the node does.
    #[error("`{0}` lacks an argument that its operator needs")]
    Arguments(String),
}

/// A fault at a byte of the text, before line and column are worked out.
#[derive(Debug)]
pub(super) struct Fault {
    pub at: usize,
    pub len: usize,
    pub expected: String,
    pub problem: Option<String>,
}

impl Fault {
    /// Something else was expected at `at`.
    pub(super) fn expected(at: usize, expected: impl Into<String>) -> Self {
        Self { at, len: 0, expected: expected.into(), problem: None }
    }

    /// A sentence about the `len` bytes at `at`.
    pub(super) fn problem(at: usize, len: usize, problem: String, expected: impl Into<String>) -> Self {
        Self { at, len, expected: expected.into(), problem: Some(problem) }
    }
}
