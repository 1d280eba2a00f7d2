//! Making extents equal, by making their forms agree.

use super::extents::{Extent, Extents, Form};

/// Pieces of pieces are made equal so many times; sums that are shifted against themselves never come to an end.
const MAX_DEPTH: u32 = 32;

impl Extents {
    /// Makes two extents one. Extents of different sizes are left alone: whoever asks for that is at fault, and will be
    /// told so when the graph runs.
    pub fn unify(&mut self, a: Extent, b: Extent) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b || self.size(a) != self.size(b) || self.is_full() {
            return;
        }
        if self.depth > MAX_DEPTH {
            return self.equate(a, b);
        }
        self.depth += 1;
        self.unify_forms(a, b);
        self.depth -= 1;
    }

    fn unify_forms(&mut self, a: Extent, b: Extent) {
        match (self.form(a).clone(), self.form(b).clone()) {
            (Form::Leaf, _) => self.link(a, b),
            (_, Form::Leaf) => self.link(b, a),
            (Form::Fixed, _) => {
                self.fix(b);
                self.link(a, b);
            }
            (_, Form::Fixed) => {
                self.fix(a);
                self.link(b, a);
            }
            (Form::Product(_), Form::Product(_)) => self.unify_products(a, b),
            (Form::Sum(_), Form::Sum(_)) => self.unify_sums(a, b),
            (Form::Product(_), Form::Sum(_)) => self.unify_rows(a, b),
            (Form::Sum(_), Form::Product(_)) => self.unify_rows(b, a),
        }
    }

    fn unify_products(&mut self, a: Extent, b: Extent) {
        let (mut left, mut right) = (self.factors(a), self.factors(b));
        while let (Some(x), Some(y)) = (left.pop(), right.pop()) {
            let size = self.size(x).min(self.size(y));
            let (Some((above_x, x)), Some((above_y, y))) = (self.factor(x, size), self.factor(y, size)) else {
                return self.equate(a, b);
            };
            self.unify(x, y);
            left.extend((self.size(above_x) > 1).then_some(above_x));
            right.extend((self.size(above_y) > 1).then_some(above_y));
        }
        self.link_if_apart(a, b);
    }

    fn unify_sums(&mut self, a: Extent, b: Extent) {
        let parts = self.parts(a);
        if self.are_in_any_order(&parts, &self.parts(b)) {
            return;
        }
        let sizes: Vec<u64> = parts.iter().map(|&part| self.size(part)).collect();
        let others = self.cut_all(b, &sizes);
        for (part, other) in parts.into_iter().zip(others) {
            self.unify(part, other);
        }
        self.link_if_apart(a, b);
    }

    /// Whether sums have the same parts, so that they are equal whatever these are.
    fn are_in_any_order(&self, a: &[Extent], b: &[Extent]) -> bool {
        let key = |&part: &Extent| match self.form(part) {
            Form::Fixed => (None, self.size(part)),
            _ => (Some(self.root(part)), 0),
        };
        let sorted = |parts: &[Extent]| {
            let mut keys: Vec<_> = parts.iter().map(key).collect();
            keys.sort_unstable();
            keys
        };
        a.len() == b.len() && sorted(a) == sorted(b)
    }

    /// A product and a sum whose parts, alone or with their neighbours, are whole rows of it.
    fn unify_rows(&mut self, product: Extent, sum: Extent) {
        let (factors, parts) = (self.factors(product), self.parts(sum));
        for first in 1..factors.len() {
            let row = factors[first..].iter().fold(1u64, |row, &factor| row.saturating_mul(self.size(factor)));
            let mut end = 0u64;
            let groups: Vec<&[Extent]> = parts
                .split_inclusive(|&part| {
                    end += self.size(part);
                    end.is_multiple_of(row)
                })
                .collect();
            if groups.len() < 2 {
                continue;
            }
            let size = |group: &&[Extent]| group.iter().map(|&part| self.size(part)).sum::<u64>() / row;
            let rows: Vec<u64> = groups.iter().map(size).collect();
            let (major, row) = (self.product(&factors[..first]), self.product(&factors[first..]));
            for (group, rows) in groups.into_iter().zip(self.cut_all(major, &rows)) {
                let (group, rows) = (self.sum(group), self.product(&[rows, row]));
                self.unify(group, rows);
            }
            return self.link_if_apart(sum, product);
        }
        self.equate(product, sum);
    }

    /// Links what pieces may have linked already.
    fn link_if_apart(&mut self, a: Extent, b: Extent) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            self.link(a, b);
        }
    }
}
