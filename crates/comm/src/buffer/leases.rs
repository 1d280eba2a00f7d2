//! Which ranges of an arena are in use, and by whom.
//!
//! A map of disjoint segments in the order of their starts. A segment is read by one or more holders, or written by
//! one. Taking a lease splits the segments at its ends; so taking and giving back cost a search and the segments
//! touched.

use super::Holder;
use std::collections::BTreeMap;
use std::ops::Range;

/// How a range is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Together with other readers.
    Read,
    /// Alone.
    Write,
}

struct Segment {
    end: usize,
    /// Number of readers; 0 when it is written.
    readers: u32,
    /// The last who took it.
    holder: Holder,
}

/// The leases of one arena. Keys are the starts of segments.
#[derive(Default)]
pub struct Leases(BTreeMap<usize, Segment>);

impl Leases {
    /// Takes a range, or says who holds part of it. An empty range is always free.
    pub fn take(&mut self, range: &Range<usize>, access: Access, holder: &Holder) -> Result<(), Holder> {
        if range.is_empty() {
            return Ok(());
        }
        let busy = |segment: &Segment| access == Access::Write || segment.readers == 0 || segment.readers == u32::MAX;
        if let Some(segment) = self.overlapping(range).find(|segment| busy(segment)) {
            return Err(segment.holder.clone());
        }
        self.split(range.start);
        self.split(range.end);
        let mut at = range.start;
        while at < range.end {
            let next = self.0.range(at..range.end).next().map_or(range.end, |(start, _)| *start);
            if next == at {
                let Some(segment) = self.0.get_mut(&at) else { break };
                segment.readers += 1;
                segment.holder = holder.clone();
                at = segment.end;
            } else {
                let readers = u32::from(access == Access::Read);
                self.0.insert(at, Segment { end: next, readers, holder: holder.clone() });
                at = next;
            }
        }
        Ok(())
    }

    /// Gives back a range that was taken.
    pub fn give_back(&mut self, range: &Range<usize>) {
        let starts: Vec<usize> =
            self.0.range(range.start..range.end.max(range.start)).map(|(start, _)| *start).collect();
        for start in starts {
            match self.0.get_mut(&start) {
                Some(segment) if segment.readers > 1 => segment.readers -= 1,
                _ => drop(self.0.remove(&start)),
            }
        }
    }

    fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = &Segment> {
        let before = self.0.range(..range.start).next_back().map(|(_, segment)| segment);
        let start = range.start;
        before.into_iter().filter(move |segment| segment.end > start).chain(self.0.range(range.clone()).map(|(_, s)| s))
    }

    /// Makes sure that no segment reaches across `at`.
    fn split(&mut self, at: usize) {
        let Some((_, segment)) = self.0.range_mut(..at).next_back() else { return };
        if segment.end > at {
            let rest = Segment { end: segment.end, readers: segment.readers, holder: segment.holder.clone() };
            segment.end = at;
            self.0.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(name: &str) -> Holder {
        Holder::Call { op: "all_reduce", group: name.into() }
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let mut leases = Leases::default();
        leases.take(&(0..10), Access::Read, &holder("a")).unwrap();
        leases.take(&(5..15), Access::Read, &holder("b")).unwrap();
        assert_eq!(leases.take(&(14..20), Access::Write, &holder("c")), Err(holder("b")));
        leases.take(&(15..20), Access::Write, &holder("c")).unwrap();
        assert_eq!(leases.take(&(12..16), Access::Read, &holder("d")), Err(holder("c")));
        leases.give_back(&(0..10));
        leases.take(&(0..5), Access::Write, &holder("d")).unwrap();
        assert_eq!(leases.take(&(4..6), Access::Write, &holder("e")), Err(holder("d")));
        for range in [5..15, 15..20, 0..5] {
            leases.give_back(&range);
        }
        assert!(leases.0.is_empty());
    }

    #[test]
    fn leases_agree_with_a_table_of_bytes() {
        // Against a plain table: readers of each byte, or -1 for a writer.
        let mut table = [0i32; 32];
        let mut leases = Leases::default();
        let mut held: Vec<(Range<usize>, Access)> = Vec::new();
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            if !held.is_empty() && random(2) == 0 {
                let (range, access) = held.swap_remove(random(held.len() as u64) as usize);
                leases.give_back(&range);
                table[range].iter_mut().for_each(|byte| *byte = if access == Access::Read { *byte - 1 } else { 0 });
                continue;
            }
            let start = random(32) as usize;
            let range = start..start + random(32 - start as u64 + 1) as usize;
            let access = if random(3) == 0 { Access::Write } else { Access::Read };
            let free =
                table[range.clone()].iter().all(|&byte| if access == Access::Read { byte >= 0 } else { byte == 0 });
            assert_eq!(leases.take(&range, access, &Holder::Host).is_ok(), free, "{range:?} {access:?} in {table:?}");
            if free {
                let step = if access == Access::Read { 1 } else { -1 };
                table[range.clone()].iter_mut().for_each(|byte| *byte += step);
                held.push((range, access));
            }
        }
    }
}
