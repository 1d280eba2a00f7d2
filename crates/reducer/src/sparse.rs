//! Gradients that are a few rows of a tensor: gathered from all ranks, and added up row by row in rank order.
//!
//! Two stages, as in a hook: how many rows each rank has, then rows and values, filled up to the longest.

use crate::copy;
use crate::param::{Param, real};
use bucketeer_types::DType;
use std::collections::BTreeMap;

/// Rows and their values, by rising row, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseGradient {
    /// Of the first dimension.
    pub rows: Vec<u64>,
    /// The values of each row, end to end, in the parameter's dtype.
    pub values: Vec<u8>,
}

/// Bytes of one row.
pub fn row_bytes(param: &Param) -> u64 {
    let rows = param.shape().first().copied().unwrap_or(1);
    let row = param.shape().iter().skip(1).fold(1u64, |product, size| product.saturating_mul(*size));
    debug_assert!(rows.checked_mul(row).is_some());
    row.saturating_mul(param.dtype().bytes())
}

impl SparseGradient {
    /// Rows in any order, also more than once, each times a factor; rows that come more than once are added up in the order in
    /// which they come.
    ///
    /// # Errors
    /// A text: a row that there is not, or values that are not as many as rows.
    pub fn new(param: &Param, rows: &[u64], values: &[u8], factor: Option<f64>) -> Result<Self, String> {
        let width = row_bytes(param);
        let count = param.shape().first().copied().unwrap_or(0);
        if let Some(row) = rows.iter().find(|row| **row >= count) {
            return Err(format!("it has row {row}, the parameter {count} rows"));
        }
        if (rows.len() as u64).checked_mul(width) != Some(values.len() as u64) {
            let (found, rows) = (values.len(), rows.len());
            return Err(format!("it has {found} bytes of values for {rows} rows of {width} bytes"));
        }
        let mut values = values.to_vec();
        copy::scale(reals(param), factor, &mut values);
        let mut sum = Sum::default();
        sum.add(param, rows, &values);
        Ok(sum.done())
    }

    /// Adds another one, which comes later.
    pub fn add(&mut self, param: &Param, other: &Self) {
        let mut sum = Sum::default();
        sum.add(param, &self.rows, &self.values);
        sum.add(param, &other.rows, &other.values);
        *self = sum.done();
    }

    /// What a rank sends in the second stage: rows as numbers of 64 bits, and values, each filled up to `rows` with zeros.
    pub fn padded(&self, param: &Param, rows: usize) -> (Vec<u8>, Vec<u8>) {
        let mut numbers: Vec<u8> = self.rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        numbers.resize(rows * 8, 0);
        let mut values = self.values.clone();
        values.resize(rows * row_bytes(param) as usize, 0);
        (numbers, values)
    }

    /// The sum of what all ranks sent; `counts` says how many rows are each rank's.
    pub fn of_ranks(param: &Param, counts: &[usize], rows: &[u8], values: &[u8]) -> Self {
        let most = counts.iter().copied().max().unwrap_or(0);
        let width = row_bytes(param) as usize;
        let mut sum = Sum::default();
        for (rank, &count) in counts.iter().enumerate() {
            let numbers = &rows[rank * most * 8..][..count * 8];
            let rows: Vec<u64> = numbers.as_chunks::<8>().0.iter().map(|row| u64::from_le_bytes(*row)).collect();
            sum.add(param, &rows, &values[rank * most * width..][..count * width]);
        }
        sum.done()
    }
}

fn reals(param: &Param) -> DType {
    real(param.dtype()).map_or(DType::F32, |(dtype, _)| dtype)
}

/// Values by row.
#[derive(Default)]
struct Sum(BTreeMap<u64, Vec<u8>>);

impl Sum {
    fn add(&mut self, param: &Param, rows: &[u64], values: &[u8]) {
        let width = row_bytes(param) as usize;
        for (at, row) in rows.iter().enumerate() {
            let values = &values[at * width..][..width];
            match self.0.get_mut(row) {
                Some(sum) => copy::add(reals(param), values, sum),
                None => drop(self.0.insert(*row, values.to_vec())),
            }
        }
    }

    fn done(self) -> SparseGradient {
        let (rows, values): (Vec<u64>, Vec<Vec<u8>>) = self.0.into_iter().unzip();
        SparseGradient { rows, values: values.concat() }
    }
}
