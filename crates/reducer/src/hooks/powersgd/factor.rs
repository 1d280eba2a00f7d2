//! One matrix of a bucket on its way through the stages.

use super::super::values;
use super::PowerSgdOptions;
use super::linear::{Matrix, gram_schmidt, householder, product_row};
use super::normals::Normals;
use crate::{BucketLayout, HookError, Part};
use bucketeer_types::DType;
use std::ops::Range;

/// What is kept of a parameter from step to step. Empty lists are zeros for an error, and none for a Q.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// What this rank's gradients had that no step has brought yet; elements of [`error_dtype`]. While a step runs,
    /// with the gradients added to it.
    pub error: Vec<u8>,
    /// The last step's, column by column.
    pub q: Vec<f64>,
    /// The last step's.
    #[cfg(test)]
    pub p: Vec<f64>,
}

/// What an error is kept in.
pub const fn error_dtype(bucket: DType) -> DType {
    match bucket {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// A gradient M and the matrices P and Q whose product takes its place.
#[derive(Clone, Debug)]
pub struct Factor {
    pub param: usize,
    /// Of M, in elements of the bucket.
    range: Range<usize>,
    rows: usize,
    cols: usize,
    rank: usize,
    /// Column by column.
    p: Vec<f64>,
    q: Vec<f64>,
}

/// A bucket's parameters that are worth compressing, and the ranges of the others.
pub fn split(layout: &BucketLayout, options: &PowerSgdOptions) -> (Vec<Factor>, Vec<Range<usize>>) {
    let (mut factors, mut others) = (Vec::new(), Vec::new());
    for part in layout.parts.iter().filter(|part| !part.range.is_empty()) {
        match Factor::new(part, options) {
            Some(factor) => factors.push(factor),
            None => others.push(part.range.clone()),
        }
    }
    (factors, others)
}

impl Factor {
    fn new(part: &Part, options: &PowerSgdOptions) -> Option<Self> {
        let elements = part.range.len();
        let first = part.shape.first().and_then(|size| usize::try_from(*size).ok());
        let rows = first.filter(|rows| *rows > 0 && elements.is_multiple_of(*rows)).unwrap_or(1);
        let cols = elements / rows;
        let rank = options.rank.min(rows).min(cols);
        let compressed = (rows + cols) as f64 * rank as f64;
        let worth = compressed * options.min_rate < elements as f64;
        let (p, q) = (Vec::new(), Vec::new());
        worth.then(|| Self { param: part.param, range: part.range.clone(), rows, cols, rank, p, q })
    }

    pub const fn p_elements(&self) -> usize {
        self.rows * self.rank
    }

    pub const fn q_elements(&self) -> usize {
        self.cols * self.rank
    }

    /// Takes up the error, chooses Q and calculates this rank's P.
    pub fn begin(
        &mut self,
        bucket: &Bucket<'_>,
        gradients: &[u8],
        state: &mut State,
        normals: &Normals,
    ) -> Result<(), HookError> {
        if bucket.options.error_feedback {
            let to = error_dtype(bucket.dtype);
            let bytes = self.range.len() * values::width(to);
            if state.error.len() != bytes {
                state.error = vec![0; bytes];
            }
            values::add(bucket.dtype, self.gradient(bucket.dtype, gradients), to, &mut state.error)?;
        }
        self.q = self.choose_q(bucket.step, state, normals);
        orthogonalise(&mut self.q, self.cols, bucket);
        self.p = vec![0.0; self.p_elements()];
        self.matrix(bucket, gradients, state).times(&self.q, &mut self.p)?;
        self.p.iter_mut().for_each(|value| *value /= bucket.divisor);
        Ok(())
    }

    /// The last step's Q, where it has a direction: a gradient of zeros leaves none, and would for good.
    fn choose_q(&self, step: u64, state: &mut State, normals: &Normals) -> Vec<f64> {
        let mut q = std::mem::take(&mut state.q);
        if q.len() != self.q_elements() {
            q = vec![0.0; self.q_elements()];
        }
        let is_lost = |column: &[f64]| column.iter().all(|value| *value == 0.0);
        if q.chunks_exact(self.cols).any(is_lost) {
            let mut drawn = vec![0.0; q.len()];
            normals(step, self.param, &mut drawn);
            for (column, drawn) in q.chunks_exact_mut(self.cols).zip(drawn.chunks_exact(self.cols)) {
                if is_lost(column) {
                    column.copy_from_slice(drawn);
                }
            }
        }
        q
    }

    /// Takes all ranks' P and calculates this rank's Q.
    pub fn project(
        &mut self,
        bucket: &Bucket<'_>,
        gradients: &[u8],
        state: &State,
        wire: &[u8],
    ) -> Result<(), HookError> {
        values::load(bucket.dtype, wire, &mut self.p)?;
        if self.p.iter().all(|value| value.is_finite()) {
            orthogonalise(&mut self.p, self.rows, bucket);
        } else {
            self.p.fill(f64::NAN);
        }
        let mut q = vec![0.0; self.q_elements()];
        self.matrix(bucket, gradients, state).transposed_times(&self.p, &mut q)?;
        q.iter_mut().for_each(|value| *value /= bucket.divisor);
        self.q = q;
        Ok(())
    }

    /// Takes all ranks' Q, writes P Qᵀ in place of the gradient and keeps what it lacks.
    pub fn end(
        &mut self,
        bucket: &Bucket<'_>,
        gradients: &mut [u8],
        state: &mut State,
        wire: &[u8],
    ) -> Result<(), HookError> {
        values::load(bucket.dtype, wire, &mut self.q)?;
        // The same on all ranks, as both are.
        let is_lost = !self.p.iter().chain(&self.q).all(|value| value.is_finite());
        if is_lost {
            self.q.fill(f64::NAN);
        }
        let gradient = &mut gradients[values::bytes_of(&self.range, bucket.dtype)];
        let has_error = self.expand(bucket, gradient, &mut state.error)?;
        if is_lost || !has_error {
            state.error.clear();
        }
        #[cfg(test)]
        state.p.clone_from(&self.p);
        if bucket.options.warm_start && !is_lost {
            state.q = std::mem::take(&mut self.q);
        }
        Ok(())
    }

    /// Writes P Qᵀ, and takes this rank's part of it from the error; whether that is finite.
    fn expand(&self, bucket: &Bucket<'_>, gradient: &mut [u8], error: &mut [u8]) -> Result<bool, HookError> {
        let (dtype, kept) = (bucket.dtype, error_dtype(bucket.dtype));
        let (mut row, mut rest) = (vec![0.0; self.cols], vec![0.0; self.cols]);
        let mut is_finite = true;
        let mut errors = error.chunks_exact_mut(self.cols * values::width(kept));
        for (at, bytes) in gradient.chunks_exact_mut(self.cols * values::width(dtype)).enumerate() {
            product_row(&self.p, &self.q, self.rows, at, &mut row);
            values::store(dtype, &row, bytes)?;
            let Some(error) = errors.next() else { continue };
            // As it was rounded.
            values::load(dtype, bytes, &mut row)?;
            values::load(kept, error, &mut rest)?;
            rest.iter_mut().zip(&row).for_each(|(rest, sent)| *rest -= bucket.share * sent);
            is_finite &= rest.iter().all(|value| value.is_finite());
            values::store(kept, &rest, error)?;
        }
        Ok(is_finite)
    }

    pub fn p(&self) -> &[f64] {
        &self.p
    }

    pub fn q(&self) -> &[f64] {
        &self.q
    }

    /// M: with the error, where there is one.
    fn matrix<'a>(&self, bucket: &Bucket<'_>, gradients: &'a [u8], state: &'a State) -> Matrix<'a> {
        let cols = self.cols;
        if bucket.options.error_feedback {
            return Matrix { dtype: error_dtype(bucket.dtype), bytes: &state.error, cols };
        }
        Matrix { dtype: bucket.dtype, bytes: self.gradient(bucket.dtype, gradients), cols }
    }

    fn gradient<'a>(&self, dtype: DType, gradients: &'a [u8]) -> &'a [u8] {
        &gradients[values::bytes_of(&self.range, dtype)]
    }
}

/// What all factors of a bucket share.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    pub options: &'a PowerSgdOptions,
    pub dtype: DType,
    pub step: u64,
    pub divisor: f64,
    /// How much of the result counts as this rank's: as the result is the ranks' sum over the divisor, all of them
    /// together have the divisor of it.
    pub share: f64,
}

/// Makes columns orthonormal as PyTorch does for their number and dtype.
fn orthogonalise(columns: &mut [f64], rows: usize, bucket: &Bucket<'_>) {
    let count = columns.len() / rows;
    if count <= 2 || values::width(bucket.dtype) == 2 {
        gram_schmidt(columns, rows, bucket.options.epsilon);
    } else {
        householder(columns, rows);
    }
}
