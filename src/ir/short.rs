//! Short lists.

use smallvec::SmallVec;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A list whose first `N` elements stand where the list does, so that most lists take no memory of their own: shapes,
/// strides, operands. It is used as a slice.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Short<T, const N: usize>(SmallVec<[T; N]>);

impl<T, const N: usize> Short<T, N> {
    /// No elements.
    #[must_use]
    pub fn new() -> Self {
        Self(SmallVec::new())
    }

    /// No elements, with room for so many.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(SmallVec::with_capacity(capacity))
    }

    /// Puts an element last.
    pub fn push(&mut self, element: T) {
        self.0.push(element);
    }

    /// Puts an element at a place, before what stands there.
    ///
    /// # Panics
    /// When the place is beyond the end.
    pub fn insert(&mut self, place: usize, element: T) {
        self.0.insert(place, element);
    }

    /// Takes the element at a place out.
    ///
    /// # Panics
    /// When there is none.
    pub fn remove(&mut self, place: usize) -> T {
        self.0.remove(place)
    }

    /// Takes the last element out.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Takes all elements out.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes all elements behind the first `length` out.
    pub fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    /// Keeps the elements of which that is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.0.retain(|element| keep(element));
    }

    /// The elements as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T: Clone, const N: usize> Short<T, N> {
    /// The same element so many times.
    #[must_use]
    pub fn filled(element: T, count: usize) -> Self {
        Self(SmallVec::from_elem(element, count))
    }
}

impl<T, const N: usize> Default for Short<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for Short<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T, const N: usize> Deref for Short<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const N: usize> DerefMut for Short<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: Clone, const N: usize> From<&[T]> for Short<T, N> {
    fn from(elements: &[T]) -> Self {
        Self(SmallVec::from(elements))
    }
}

impl<T, const M: usize, const N: usize> From<[T; M]> for Short<T, N> {
    fn from(elements: [T; M]) -> Self {
        elements.into_iter().collect()
    }
}

impl<T, const N: usize> From<Vec<T>> for Short<T, N> {
    fn from(elements: Vec<T>) -> Self {
        Self(SmallVec::from_vec(elements))
    }
}

impl<T, const N: usize> FromIterator<T> for Short<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self(SmallVec::from_iter(elements))
    }
}

impl<T, const N: usize> Extend<T> for Short<T, N> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        self.0.extend(elements);
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a Short<T, N> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a mut Short<T, N> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut()
    }
}

impl<T, const N: usize> IntoIterator for Short<T, N> {
    type Item = T;
    type IntoIter = IntoIter<T, N>;

    fn into_iter(self) -> Self::IntoIter {
        IntoIter(self.0.into_iter())
    }
}

/// The elements of a [`Short`] list, in order.
pub struct IntoIter<T, const N: usize>(smallvec::IntoIter<[T; N]>);

impl<T, const N: usize> Iterator for IntoIter<T, N> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T, const N: usize> DoubleEndedIterator for IntoIter<T, N> {
    fn next_back(&mut self) -> Option<T> {
        self.0.next_back()
    }
}

impl<T, const N: usize> ExactSizeIterator for IntoIter<T, N> {}

impl<T: fmt::Debug, const N: usize> fmt::Debug for IntoIter<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_the_same_whether_it_stands_here_or_there() {
        let here: Short<u64, 4> = (0..3).collect();
        let mut there = Short::<u64, 4>::from(vec![0, 1, 2, 9, 9, 9]);
        there.retain(|&element| element != 9);
        assert_eq!(here, there);
        assert_eq!(format!("{here:?}"), "[0, 1, 2]");
        assert_eq!((there.pop(), there.len()), (Some(2), 2));
        there.insert(0, 7);
        assert_eq!(there.remove(1), 0);
        assert_eq!(there.as_slice(), [7, 1]);
        there.truncate(1);
        there.extend([5, 6]);
        assert_eq!(there.into_iter().rev().collect::<Vec<_>>(), [6, 5, 7]);
        assert_eq!(Short::<u64, 1>::filled(3, 2), Short::from([3, 3]));
        assert_eq!(Short::<u64, 1>::from(&[3, 3][..]), Short::from([3, 3]));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn json_is_a_plain_list() {
        let list = Short::<u64, 2>::from([1, 2, 3]);
        let json = serde_json::to_string(&list).unwrap();
        assert_eq!(json, "[1,2,3]");
        assert_eq!(serde_json::from_str::<Short<u64, 2>>(&json).unwrap(), list);
    }
}
