//! Taking extents apart: into parts end to end, and into rows.

use super::extents::{Extent, Extents, Form};

impl Extents {
    /// The first `at` of an extent, and the rest.
    pub fn cut(&mut self, extent: Extent, at: u64) -> (Extent, Extent) {
        let parts = self.cut_all(extent, &[at, self.size(extent).saturating_sub(at)]);
        (parts[0], parts[1])
    }

    /// An extent in parts of the given sizes, which add up to it.
    pub fn cut_all(&mut self, extent: Extent, sizes: &[u64]) -> Vec<Extent> {
        match self.form(extent).clone() {
            _ if self.is_full() => sizes.iter().map(|&size| self.leaf(size)).collect(),
            _ if sizes.contains(&self.size(extent)) => {
                let whole = |size: &u64| if *size == 0 { self.fixed(0) } else { extent };
                sizes.iter().map(whole).collect()
            }
            Form::Fixed => sizes.iter().map(|&size| self.fixed(size)).collect(),
            Form::Leaf => {
                let parts: Vec<Extent> = sizes.iter().map(|&size| self.leaf(size)).collect();
                let full = parts.iter().copied().filter(|&part| self.size(part) > 0).collect();
                self.set(extent, Form::Sum(full));
                parts
            }
            Form::Sum(_) => self.cut_sum(extent, sizes),
            Form::Product(_) => {
                let (mut rest, mut parts) = (extent, Vec::new());
                for &size in sizes {
                    let (part, after) = self.cut_product(rest, size);
                    parts.push(part);
                    rest = after;
                }
                parts
            }
        }
    }

    fn cut_sum(&mut self, extent: Extent, sizes: &[u64]) -> Vec<Extent> {
        let mut old = self.parts(extent);
        old.reverse();
        let (mut pieces, mut refined) = (Vec::new(), Vec::new());
        for &size in sizes {
            let (mut piece, mut left) = (Vec::new(), size);
            while left > 0 {
                let Some(part) = old.pop() else { break };
                let part = if self.size(part) > left {
                    let (first, rest) = self.cut(part, left);
                    old.push(rest);
                    first
                } else {
                    part
                };
                left -= self.size(part);
                piece.push(part);
            }
            refined.extend_from_slice(&piece);
            pieces.push(self.sum(&piece));
        }
        self.set(extent, Form::Sum(refined));
        pieces
    }

    /// Cuts rows, and one of them across where the place is inside of it.
    fn cut_product(&mut self, extent: Extent, at: u64) -> (Extent, Extent) {
        let size = self.size(extent);
        let factors = self.factors(extent);
        if at == 0 || at == size || factors.len() < 2 {
            return match at {
                0 => (self.fixed(0), extent),
                _ if at == size => (extent, self.fixed(0)),
                _ => self.cut(extent, at),
            };
        }
        let row = self.product(&factors[1..]);
        let (rows, inside) = (at / self.size(row), at % self.size(row));
        let (above, below) = self.cut(factors[0], rows);
        let above = self.product(&[above, row]);
        if inside == 0 {
            return (above, self.product(&[below, row]));
        }
        let (_, below) = self.cut(below, 1);
        let (left, right) = self.cut(row, inside);
        let below = self.product(&[below, row]);
        (self.sum(&[above, left]), self.sum(&[right, below]))
    }

    /// An extent as `major` times `minor`, for a size of `minor`; nothing, if its form does not allow it.
    pub fn factor(&mut self, extent: Extent, minor: u64) -> Option<(Extent, Extent)> {
        let size = self.size(extent);
        if size == 0 || minor == 0 || !size.is_multiple_of(minor) || self.is_full() {
            return None;
        }
        match self.form(extent).clone() {
            _ if minor == 1 => Some((extent, self.fixed(1))),
            _ if minor == size => Some((self.fixed(1), extent)),
            Form::Fixed => Some((self.fixed(size / minor), self.fixed(minor))),
            Form::Leaf => {
                let (major, minor) = (self.leaf(size / minor), self.leaf(minor));
                self.set(extent, Form::Product(vec![major, minor]));
                Some((major, minor))
            }
            Form::Product(_) => self.factor_product(extent, minor),
            Form::Sum(_) => self.factor_sum(extent, minor),
        }
    }

    fn factor_product(&mut self, extent: Extent, minor: u64) -> Option<(Extent, Extent)> {
        let mut major = self.factors(extent);
        let (mut taken, mut left) = (Vec::new(), minor);
        while left > 1 {
            let factor = major.pop()?;
            if left % self.size(factor) == 0 {
                left /= self.size(factor);
                taken.push(factor);
                continue;
            }
            let (above, below) = self.factor(factor, left)?;
            major.push(above);
            taken.push(below);
            left = 1;
        }
        taken.reverse();
        Some((self.product(&major), self.product(&taken)))
    }

    /// Parts that are rows of one length together are rows of it; else rows may begin where parts do.
    fn factor_sum(&mut self, extent: Extent, minor: u64) -> Option<(Extent, Extent)> {
        let parts = self.parts(extent);
        if parts.iter().any(|&part| !self.size(part).is_multiple_of(minor)) {
            return self.rows_of_parts(extent, &parts, minor);
        }
        let mut majors = Vec::new();
        let mut row = None;
        for part in parts {
            let (major, minor) = self.factor(part, minor)?;
            self.unify(*row.get_or_insert(minor), minor);
            majors.push(major);
        }
        let (major, row) = (self.sum(&majors), row?);
        self.set(extent, Form::Product(vec![major, row]));
        Some((major, row))
    }

    fn rows_of_parts(&mut self, extent: Extent, parts: &[Extent], minor: u64) -> Option<(Extent, Extent)> {
        let rows = self.size(extent) / minor;
        let mut end = 0u64;
        let begins = parts.iter().filter(|&&part| {
            end += self.size(part);
            end.is_multiple_of(minor)
        });
        if begins.count() as u64 != rows {
            return None;
        }
        let pieces = self.cut_all(extent, &vec![minor; rows as usize]);
        for &piece in &pieces[1..] {
            self.unify(pieces[0], piece);
        }
        let rows = self.fixed(rows);
        self.set(extent, Form::Product(vec![rows, pieces[0]]));
        Some((rows, pieces[0]))
    }

    /// An extent divided by a number that divides it.
    pub fn quotient(&mut self, extent: Extent, by: u64) -> Extent {
        let size = self.size(extent) / by.max(1);
        if let Some((major, minor)) = self.factor(extent, size) {
            self.fix(major);
            return minor;
        }
        let (by, quotient) = (self.fixed(by), self.leaf(size));
        let whole = self.product(&[by, quotient]);
        self.equate(extent, whole);
        quotient
    }
}
