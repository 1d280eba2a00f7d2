//! What the tensors of one launch have to be to one another.

use super::{BufferId, Collective, Program, Range};

/// Two tensors of one launch that cannot go together: their places among its parts, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clash {
    /// The first of them.
    pub first: usize,
    /// The other.
    pub second: usize,
    /// What is wrong with them, as a sentence without its subject.
    pub reason: String,
}

/// Bytes that a part touches, of all ranks.
struct Touched {
    buffer: BufferId,
    start: u64,
    end: u64,
    part: usize,
    writes: bool,
}

impl Program {
    /// The first two parts of a launch that lie on different devices, or of which one writes what the other reads or
    /// writes: what is in flight together has no order. Near-linear in parts.
    pub(crate) fn clash_in_launch(&self, collective: &Collective) -> Option<Clash> {
        self.two_devices(collective).or_else(|| self.overlap(collective))
    }

    fn two_devices(&self, collective: &Collective) -> Option<Clash> {
        let mut known: Option<(usize, &str)> = None;
        for (part, ranges) in collective.parts.iter().enumerate() {
            for range in [ranges.send, ranges.recv] {
                let Some(device) = self.buffer(range.buffer).device.as_deref() else { continue };
                let (first, other) = *known.get_or_insert((part, device));
                if other != device {
                    let reason = format!("lie on {other} and {device}; one launch takes tensors of one device");
                    return Some(Clash { first, second: part, reason });
                }
            }
        }
        None
    }

    fn overlap(&self, collective: &Collective) -> Option<Clash> {
        if collective.parts.len() < 2 {
            return None;
        }
        let ranks = self.groups.get(collective.group as usize).map_or(1, |group| u64::from(group.size.max(1)));
        let hull = |range: &Range| {
            let last = range.rank_bytes.saturating_mul(ranks - 1).saturating_add(range.offset);
            (range.offset, last.saturating_add(range.bytes))
        };
        let mut touched = Vec::with_capacity(2 * collective.parts.len());
        for (part, ranges) in collective.parts.iter().enumerate() {
            let ((sent, sent_end), (start, end)) = (hull(&ranges.send), hull(&ranges.recv));
            let (source, buffer) = (ranges.send.buffer, ranges.recv.buffer);
            // In place: one range.
            if source == buffer && sent < end && start < sent_end {
                touched.push(Touched { buffer, start: start.min(sent), end: end.max(sent_end), part, writes: true });
                continue;
            }
            touched.push(Touched { buffer: source, start: sent, end: sent_end, part, writes: false });
            touched.push(Touched { buffer, start, end, part, writes: true });
        }
        touched.retain(|one| one.start < one.end);
        touched.sort_by_key(|one| (one.buffer, one.start));
        let (mut read, mut written): (Option<&Touched>, Option<&Touched>) = (None, None);
        for one in &touched {
            let over = |other: &&Touched| other.buffer == one.buffer && other.end > one.start;
            let clash = written.filter(over).or_else(|| read.filter(over).filter(|_| one.writes));
            if let Some(other) = clash {
                let name = &self.buffer(one.buffer).name;
                let reason = format!("overlap in `{name}`, and it writes one of them");
                let (first, second) = (other.part.min(one.part), other.part.max(one.part));
                return Some(Clash { first, second, reason });
            }
            let furthest = if one.writes { &mut written } else { &mut read };
            if furthest.is_none_or(|other| other.buffer != one.buffer || other.end < one.end) {
                *furthest = Some(one);
            }
        }
        None
    }
}
