//! New sizes: one for each leaf, so that all equations hold.
//!
//! Leaves get the size that is asked for, or stay as they are where they are smaller. An equation that this breaks is
//! satisfied by changing one of its leaves, else two; an equation that cannot be satisfied fixes all sizes in it, and the
//! search starts again.

use super::extents::{Equation, Extent, Extents, Form};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

/// What indices are taken from stays at least as large as the integers in inputs, which are below this.
const INDEXED: u64 = 4;

/// Most sizes tried for a second leaf of an equation.
const TRIES: u64 = 64;

/// Most pairs of leaves and sizes tried for an equation, however many leaves it has.
const MAX_PAIRS: usize = 1024;

/// Most equations whose sizes are fixed before the search gives up.
const MAX_TURNS: usize = 64;

/// How pieces make a whole.
type Join = fn(u64, u64) -> u64;

type Map<V> = HashMap<Extent, V, FxBuildHasher>;

/// New sizes.
#[derive(Debug)]
pub struct Sizes {
    /// Of leaves that do not get the usual size.
    leaves: Map<u64>,
    /// The usual size.
    small: u64,
    /// Of all extents that were asked for.
    known: Map<u64>,
}

/// Finds new sizes, with leaves of size `small` where nothing speaks against it. Equations whose sizes had to be fixed
/// are left in the extents.
///
/// # Errors
/// The equation that cannot be satisfied without fixing sizes over and over.
pub fn solve(extents: &mut Extents, small: u64) -> Result<Sizes, Equation> {
    let mut equations = extents.equations.clone();
    let mut seen = HashSet::with_hasher(FxBuildHasher);
    equations.retain(|equation| {
        let (a, b) = (extents.root(equation.left), extents.root(equation.right));
        a != b && seen.insert((a.min(b), a.max(b)))
    });
    let mut turns = 0;
    loop {
        let mut sizes = Sizes { leaves: Map::default(), small, known: Map::default() };
        for &roomy in &extents.indexed {
            let leaves = leaves_of(extents, &[roomy]);
            sizes.leaves.extend(leaves.into_iter().map(|leaf| (leaf, extents.size(leaf).min(INDEXED))));
        }
        let mut search = Search { extents, sizes, settled: HashSet::default() };
        let Some(&failed) = equations.iter().find(|equation| !search.satisfy(equation)) else {
            return Ok(search.sizes);
        };
        if turns == MAX_TURNS {
            return Err(failed);
        }
        turns += 1;
        extents.fix(failed.left);
        extents.fix(failed.right);
        extents.unsolved.push(failed);
    }
}

struct Search<'a> {
    extents: &'a Extents,
    sizes: Sizes,
    /// Leaves of equations that hold: they may not change.
    settled: HashSet<Extent, FxBuildHasher>,
}

impl Search<'_> {
    fn gap(&self, equation: &Equation) -> i128 {
        let mut known = Map::default();
        let left = self.sizes.value(self.extents, &mut known, equation.left);
        let right = self.sizes.value(self.extents, &mut known, equation.right);
        i128::from(left) - i128::from(right)
    }

    /// Makes an equation hold, if that can be.
    fn satisfy(&mut self, equation: &Equation) -> bool {
        let leaves = leaves_of(self.extents, &[equation.left, equation.right]);
        let free: Vec<Extent> = leaves.iter().copied().filter(|leaf| !self.settled.contains(leaf)).collect();
        let holds = self.gap(equation) == 0
            || free.iter().any(|&leaf| self.with_one(equation, leaf))
            || self.with_two(equation, &free);
        self.settled.extend(leaves);
        holds
    }

    /// Looks for a size of one leaf. The gap between the sides must be linear in it.
    fn with_one(&mut self, equation: &Equation, leaf: Extent) -> bool {
        let before = self.sizes.leaves.get(&leaf).copied();
        let mut at = |size: u64| {
            self.sizes.leaves.insert(leaf, size);
            self.gap(equation)
        };
        let [zero, one, two] = [at(0), at(1), at(2)];
        let (slope, size) = (one - zero, self.extents.size(leaf));
        let linear = two - one == slope && slope != 0 && zero % slope == 0;
        let found = u64::try_from(-zero.checked_div(slope).unwrap_or(1)).unwrap_or(0);
        // What was more than one stays so: dimensions of size one are another matter.
        if linear && (2.min(size)..=size).contains(&found) {
            self.sizes.leaves.insert(leaf, found);
            return true;
        }
        self.reset(leaf, before);
        false
    }

    /// Looks for sizes of two leaves.
    fn with_two(&mut self, equation: &Equation, free: &[Extent]) -> bool {
        let mut pairs = 0;
        for &second in free {
            let before = self.sizes.leaves.get(&second).copied();
            for tried in 2..=self.extents.size(second).min(TRIES) {
                self.sizes.leaves.insert(second, tried);
                for &leaf in free.iter().filter(|&&leaf| leaf != second) {
                    pairs += 1;
                    if pairs > MAX_PAIRS {
                        return false;
                    }
                    if self.with_one(equation, leaf) {
                        return true;
                    }
                }
            }
            self.reset(second, before);
        }
        false
    }

    fn reset(&mut self, leaf: Extent, size: Option<u64>) {
        match size {
            Some(size) => self.sizes.leaves.insert(leaf, size),
            None => self.sizes.leaves.remove(&leaf),
        };
    }
}

/// The leaves that an extent is made of, each once.
fn leaves_of(extents: &Extents, sides: &[Extent]) -> Vec<Extent> {
    let (mut seen, mut leaves, mut open) = (HashSet::with_hasher(FxBuildHasher), Vec::new(), sides.to_vec());
    while let Some(extent) = open.pop() {
        let root = extents.root(extent);
        if !seen.insert(root) {
            continue;
        }
        match extents.form(root) {
            Form::Leaf => leaves.push(root),
            Form::Fixed => {}
            Form::Product(inner) | Form::Sum(inner) => open.extend(inner),
        }
    }
    leaves
}

impl Sizes {
    /// The new size of an extent.
    pub fn of(&mut self, extents: &Extents, extent: Extent) -> u64 {
        let mut known = std::mem::take(&mut self.known);
        let size = self.value(extents, &mut known, extent);
        self.known = known;
        size
    }

    /// Nested as deep as a graph likes, so not recursive.
    fn value(&self, extents: &Extents, known: &mut Map<u64>, extent: Extent) -> u64 {
        let mut open = vec![extents.root(extent)];
        while let Some(&root) = open.last() {
            let size = extents.size(root);
            let (inner, start, join): (&[Extent], u64, Join) = match extents.form(root) {
                Form::Leaf => (&[], self.leaves.get(&root).copied().unwrap_or_else(|| size.min(self.small)), u64::max),
                Form::Fixed => (&[], size, u64::max),
                Form::Product(inner) => (inner, 1, u64::saturating_mul),
                Form::Sum(inner) => (inner, 0, u64::saturating_add),
            };
            let roots = || inner.iter().map(|inner| extents.root(*inner));
            let waiting = open.len();
            open.extend(roots().filter(|inner| !known.contains_key(inner)));
            if open.len() == waiting {
                known.insert(root, roots().map(|inner| known[&inner]).fold(start, join));
                open.pop();
            }
        }
        known.get(&extents.root(extent)).copied().unwrap_or_default()
    }
}
