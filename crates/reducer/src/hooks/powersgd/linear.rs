//! Products with thin matrices, and columns made orthonormal.
//!
//! A gradient is a matrix of `rows` × `cols`, row by row, in bytes. Thin matrices P (`rows` × rank) and Q (`cols` ×
//! rank) are numbers, column by column. All is summed in f64, in an order that the code fixes, so all machines get the
//! same bits.

use super::super::values;
use crate::HookError;
use bucketeer_types::DType;

/// Sums are kept in so many parts, which processors add side by side.
const LANES: usize = 8;

/// A gradient as a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub dtype: DType,
    pub bytes: &'a [u8],
    pub cols: usize,
}

impl Matrix<'_> {
    /// Each row with its number.
    fn each_row(&self, mut step: impl FnMut(usize, &[f64])) -> Result<(), HookError> {
        let mut row = vec![0.0; self.cols];
        for (at, bytes) in self.bytes.chunks_exact(self.cols * values::width(self.dtype)).enumerate() {
            values::load(self.dtype, bytes, &mut row)?;
            step(at, &row);
        }
        Ok(())
    }

    /// P = M Q.
    ///
    /// # Errors
    /// The dtype is not a float.
    pub fn times(&self, q: &[f64], p: &mut [f64]) -> Result<(), HookError> {
        let rows = self.bytes.len() / (self.cols * values::width(self.dtype));
        self.each_row(|at, row| {
            for (p, q) in p.chunks_exact_mut(rows).zip(q.chunks_exact(self.cols)) {
                p[at] = dot(row, q);
            }
        })
    }

    /// Q = Mᵀ P.
    ///
    /// # Errors
    /// The dtype is not a float.
    pub fn transposed_times(&self, p: &[f64], q: &mut [f64]) -> Result<(), HookError> {
        let rows = self.bytes.len() / (self.cols * values::width(self.dtype));
        q.fill(0.0);
        self.each_row(|at, row| {
            for (p, q) in p.chunks_exact(rows).zip(q.chunks_exact_mut(self.cols)) {
                add_scaled(q, p[at], row);
            }
        })
    }
}

/// Row `at` of P Qᵀ.
pub fn product_row(p: &[f64], q: &[f64], rows: usize, at: usize, row: &mut [f64]) {
    row.fill(0.0);
    for (p, q) in p.chunks_exact(rows).zip(q.chunks_exact(row.len())) {
        add_scaled(row, p[at], q);
    }
}

/// Makes columns of length `rows` orthonormal, one after the other: the second is what is left of it without the first.
/// `epsilon` is added to each length that is divided by.
///
/// A column that the earlier ones make up entirely, or one of zeros, becomes zeros: what rounding leaves of it has no
/// direction.
pub fn gram_schmidt(columns: &mut [f64], rows: usize, epsilon: f64) {
    for at in 0..columns.len() / rows {
        let (done, rest) = columns.split_at_mut(at * rows);
        let column = &mut rest[..rows];
        let before = norm(column);
        // Once leaves what rounding makes of it, twice does not.
        for _ in 0..2 {
            for other in done.chunks_exact(rows) {
                add_scaled(column, -dot(column, other), other);
            }
        }
        let after = norm(column);
        if after <= before * 4.0 * f64::EPSILON {
            column.fill(0.0);
        } else {
            column.iter_mut().for_each(|value| *value /= after + epsilon);
        }
    }
}

/// The Q of a QR decomposition of columns of length `rows`, at least as many as columns, by Householder reflections.
/// The sign of a column is LAPACK's: a diagonal element of R has the opposite sign of the value that it was made of,
/// unless nothing below that needed a reflection.
pub fn householder(columns: &mut [f64], rows: usize) {
    let count = columns.len() / rows;
    // Each with its factor; the vector of reflection k begins at row k.
    let mut reflections: Vec<(f64, Vec<f64>)> = Vec::with_capacity(count);
    for at in 0..count {
        let (_, rest) = columns.split_at_mut(at * rows);
        let reflection = reflection(&rest[at..rows]);
        for column in rest.chunks_exact_mut(rows) {
            reflect(&reflection, &mut column[at..]);
        }
        reflections.push(reflection);
    }
    for (at, column) in columns.chunks_exact_mut(rows).enumerate() {
        column.fill(0.0);
        column[at] = 1.0;
        for (at, reflection) in reflections.iter().enumerate().take(at + 1).rev() {
            reflect(reflection, &mut column[at..]);
        }
    }
}

/// What turns a vector, which is not empty, into one with nothing but a first element.
fn reflection(vector: &[f64]) -> (f64, Vec<f64>) {
    let first = vector[0];
    if vector[1..].iter().all(|value| *value == 0.0) {
        return (0.0, vec![0.0; vector.len()]);
    }
    let target = -norm(vector).copysign(first);
    let mut normal: Vec<f64> = vector.iter().map(|value| value / (first - target)).collect();
    normal[0] = 1.0;
    ((target - first) / target, normal)
}

fn reflect((factor, normal): &(f64, Vec<f64>), vector: &mut [f64]) {
    add_scaled(vector, -factor * dot(vector, normal), normal);
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    let (ones, ones_rest) = one.as_chunks::<LANES>();
    let (others, others_rest) = other.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (one, other) in ones.iter().zip(others) {
        for lane in 0..LANES {
            sums[lane] += one[lane] * other[lane];
        }
    }
    let rest: f64 = ones_rest.iter().zip(others_rest).map(|(one, other)| one * other).sum();
    sums.iter().sum::<f64>() + rest
}

fn add_scaled(target: &mut [f64], factor: f64, source: &[f64]) {
    target.iter_mut().zip(source).for_each(|(target, source)| *target += factor * source);
}

/// Length of a vector. The greatest value is taken out first, so that no square is infinite or lost.
fn norm(vector: &[f64]) -> f64 {
    let greatest = vector.iter().fold(0.0, |greatest: f64, value| greatest.max(value.abs()));
    if greatest == 0.0 || !greatest.is_finite() {
        return greatest;
    }
    greatest * vector.iter().map(|value| (value / greatest) * (value / greatest)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns that no other test has, of length `rows`.
    fn columns(rows: usize, count: usize) -> Vec<f64> {
        (0..rows * count).map(|at| ((at * at * 37 + at * 11) % 101) as f64 / 50.0 - 1.0).collect()
    }

    fn assert_orthonormal(columns: &[f64], rows: usize) {
        for (i, one) in columns.chunks(rows).enumerate() {
            for (j, other) in columns.chunks(rows).enumerate() {
                let expected = f64::from(u8::from(i == j));
                assert!((dot(one, other) - expected).abs() < 1e-12, "columns {i} and {j}: {}", dot(one, other));
            }
        }
    }

    #[test]
    fn both_ways_span_the_same_directions() {
        for (rows, count) in [(9, 4), (3, 3), (1, 1), (20, 1)] {
            let (mut one, mut other) = (columns(rows, count), columns(rows, count));
            gram_schmidt(&mut one, rows, 0.0);
            householder(&mut other, rows);
            assert_orthonormal(&one, rows);
            assert_orthonormal(&other, rows);
            for (one, other) in one.chunks(rows).zip(other.chunks(rows)) {
                assert!((dot(one, other).abs() - 1.0).abs() < 1e-12, "the same up to the sign");
            }
        }
    }

    #[test]
    fn signs_are_lapacks() {
        let mut one = vec![3.0, 4.0];
        householder(&mut one, 2);
        assert!((one[0] + 0.6).abs() < 1e-15 && (one[1] + 0.8).abs() < 1e-15, "{one:?}");
        let mut none_below = vec![-2.0, 0.0];
        householder(&mut none_below, 2);
        assert_eq!(none_below, [1.0, 0.0]);
    }

    #[test]
    fn a_column_made_up_of_others_becomes_zeros() {
        let mut twice: Vec<f64> = [columns(12, 1), columns(12, 1)].concat();
        gram_schmidt(&mut twice, 12, 0.0);
        assert!(twice[12..].iter().all(|value| *value == 0.0), "{twice:?}");
        let mut zeros = vec![0.0; 12];
        gram_schmidt(&mut zeros, 4, 0.0);
        assert_eq!(zeros, [0.0; 12]);
        householder(&mut zeros, 4);
        assert_orthonormal(&zeros, 4);
    }

    #[test]
    fn the_smallest_and_greatest_columns_have_a_direction() {
        for size in [1e-300, 1e300] {
            let mut column = vec![3.0 * size, 4.0 * size];
            gram_schmidt(&mut column, 2, 0.0);
            assert!((column[0] - 0.6).abs() < 1e-15 && (column[1] - 0.8).abs() < 1e-15, "{column:?}");
        }
    }
}
