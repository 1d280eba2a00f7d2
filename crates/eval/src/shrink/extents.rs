//! Sizes as structures.
//!
//! An **extent** is the length of a dimension, or of a part of one. It knows the size it has in the graph, and how that
//! size came about: as a product (rows times columns, most significant first, as views have them) or as a sum (members
//! of a bucket, end to end). What has neither form is a leaf, whose size may change, or fixed. When two extents must be
//! equal, their forms are refined until they agree, so that a new size for each leaf is a new size for everything, and
//! sums and products still hold. Where forms cannot be made to agree, an equation between them is kept, for
//! [`solve`](super::solve) to satisfy.

use std::cell::Cell;

/// An extent of [`Extents`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent(u32);

/// How an extent came about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// Its size may change.
    Leaf,
    /// Its size stays.
    Fixed,
    /// Factors, the most significant first; at least two, none of size one.
    Product(Vec<Extent>),
    /// Parts, end to end; at least two, none of size zero.
    Sum(Vec<Extent>),
}

/// Two extents of the same size whose forms could not be made to agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Equation {
    /// One side.
    pub left: Extent,
    /// The other.
    pub right: Extent,
    /// Where it came up: in which graph, at which position.
    pub place: (usize, usize),
}

/// All extents.
#[derive(Debug, Default)]
pub struct Extents {
    /// What an extent was found equal to; itself, if nothing. Paths get shorter as they are walked.
    same_as: Vec<Cell<u32>>,
    sizes: Vec<u64>,
    forms: Vec<Form>,
    /// What is left to satisfy.
    pub equations: Vec<Equation>,
    /// What could not be satisfied, so that its sizes were fixed.
    pub unsolved: Vec<Equation>,
    /// What indices out of data are taken from.
    pub indexed: Vec<Extent>,
    /// In which graph, and at which position of it, the caller is.
    pub place: (usize, usize),
    /// How many calls of [`Extents::unify`] are under way.
    pub depth: u32,
    /// More extents than this are not made: pieces of pieces may multiply.
    pub most: usize,
}

impl Extents {
    fn make(&mut self, size: u64, form: Form) -> Extent {
        let id = self.sizes.len() as u32;
        self.same_as.push(Cell::new(id));
        self.sizes.push(size);
        self.forms.push(form);
        Extent(id)
    }

    /// Whether there are too many pieces to go on.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.sizes.len() > self.most
    }

    /// An extent that may change. Zero and one never do.
    pub fn leaf(&mut self, size: u64) -> Extent {
        self.make(size, if size > 1 { Form::Leaf } else { Form::Fixed })
    }

    /// An extent that stays.
    pub fn fixed(&mut self, size: u64) -> Extent {
        self.make(size, Form::Fixed)
    }

    /// What stands for all that are equal to this one.
    #[must_use]
    pub fn root(&self, extent: Extent) -> Extent {
        let above = |at: u32| self.same_as[at as usize].get();
        let mut at = extent.0;
        while above(at) != at {
            self.same_as[at as usize].set(above(above(at)));
            at = above(at);
        }
        Extent(at)
    }

    /// The size in the graph.
    #[must_use]
    pub fn size(&self, extent: Extent) -> u64 {
        self.sizes[extent.0 as usize]
    }

    /// The form.
    #[must_use]
    pub fn form(&self, extent: Extent) -> &Form {
        &self.forms[self.root(extent).0 as usize]
    }

    /// Gives an extent, and all that are equal to it, another form.
    pub fn set(&mut self, extent: Extent, form: Form) {
        let root = self.root(extent);
        self.forms[root.0 as usize] = form;
    }

    /// Has one extent stand for another, with its form.
    pub fn link(&mut self, from: Extent, to: Extent) {
        let (from, to) = (self.root(from), self.root(to));
        self.same_as[from.0 as usize].set(to.0);
    }

    /// The product of factors, the most significant first.
    pub fn product(&mut self, factors: &[Extent]) -> Extent {
        if factors.iter().any(|&factor| self.size(factor) == 0) {
            return self.fixed(0);
        }
        let flat: Vec<Extent> = factors.iter().flat_map(|&factor| self.factors(factor)).collect();
        match *flat.as_slice() {
            [] => self.fixed(1),
            [one] => one,
            _ => {
                let size = flat.iter().fold(1u64, |size, &factor| size.saturating_mul(self.size(factor)));
                self.make(size, Form::Product(flat))
            }
        }
    }

    /// Parts end to end.
    pub fn sum(&mut self, parts: &[Extent]) -> Extent {
        let flat: Vec<Extent> = parts.iter().flat_map(|&part| self.parts(part)).collect();
        match *flat.as_slice() {
            [] => self.fixed(0),
            [one] => one,
            // Equal parts are rows.
            [first, ref rest @ ..] if rest.iter().all(|&part| self.root(part) == self.root(first)) => {
                let count = self.fixed(flat.len() as u64);
                self.product(&[count, first])
            }
            _ => {
                let size = flat.iter().fold(0u64, |size, &part| size.saturating_add(self.size(part)));
                self.make(size, Form::Sum(flat))
            }
        }
    }

    /// The factors of an extent, products of products taken apart.
    #[must_use]
    pub fn factors(&self, extent: Extent) -> Vec<Extent> {
        let inner = |form: &Form| if let Form::Product(inner) = form { Some(inner.clone()) } else { None };
        self.apart(extent, 1, &inner)
    }

    /// The parts of an extent, sums of sums taken apart.
    #[must_use]
    pub fn parts(&self, extent: Extent) -> Vec<Extent> {
        let inner = |form: &Form| if let Form::Sum(inner) = form { Some(inner.clone()) } else { None };
        self.apart(extent, 0, &inner)
    }

    /// What an extent is made of, without pieces of size `nothing`. Nested as deep as a graph likes, so not recursive.
    fn apart(&self, extent: Extent, nothing: u64, inner: &dyn Fn(&Form) -> Option<Vec<Extent>>) -> Vec<Extent> {
        let (mut list, mut open) = (Vec::new(), vec![extent]);
        while let Some(extent) = open.pop() {
            match inner(self.form(extent)) {
                Some(inner) => open.extend(inner.into_iter().rev()),
                None if self.size(extent) == nothing => {}
                None => list.push(self.root(extent)),
            }
        }
        list
    }

    /// Keeps an extent's size, and that of all it is made of.
    pub fn fix(&mut self, extent: Extent) {
        let mut open = vec![extent];
        while let Some(extent) = open.pop() {
            let root = self.root(extent);
            match std::mem::replace(&mut self.forms[root.0 as usize], Form::Fixed) {
                Form::Product(inner) | Form::Sum(inner) => open.extend(inner),
                Form::Leaf | Form::Fixed => {}
            }
        }
    }

    /// Asks for two extents to be equal in number alone.
    pub fn equate(&mut self, left: Extent, right: Extent) {
        self.equations.push(Equation { left, right, place: self.place });
    }
}
