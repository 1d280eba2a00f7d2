//! A cap on the bytes alive at once: how it is said, how bytes are counted, and how a bucket pass keeps to it.
//!
//! Bytes are counted by place in the program, as [`Timeline`](super::schedule::Timeline) counts them. Inputs are the caller's.
//! A node that makes a tensor has it from its own place to that of the last use; outputs live to the end. Views share the memory
//! of their base. What is taken out of a result of several parts is there from where all of it was made. What a collective is
//! given, and what it makes, live until its first wait at least. What other graphs have alive that call this one is not known to
//! it.

pub(super) mod alive;
mod buffers;
mod ledger;
mod repair;
pub(super) mod within;

use crate::ir::{Graph, NodeId};
use alive::Lives;
use bucketeer_types::sizes::{format_bytes, parse_bytes};

/// A cap on the bytes alive at once, in words that may depend on what a graph needs as it stands.
///
/// ```
/// use bucketeer::passes::memory::MemoryCap;
///
/// let cap: MemoryCap = "+5%".parse()?;
/// assert_eq!(cap.bytes(1000), Some(1050));
/// assert_eq!("80GB".parse::<MemoryCap>()?.bytes(1000), Some(80_000_000_000));
/// assert_eq!(cap.to_string(), "+5%");
/// # Ok::<(), bucketeer::passes::memory::MemoryCapError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemoryCap {
    /// No limit.
    #[default]
    None,
    /// What the graph needs as it stands and 1 GiB or 5 %, whichever is more.
    Normal,
    /// What the graph needs as it stands.
    Same,
    /// More than the graph needs as it stands, by so many hundredths of a percent.
    More(u64),
    /// So many bytes.
    Bytes(u64),
}

/// A text that is no cap on memory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found}expected normal, same, none, a share such as +5%, or a size such as 80GB")]
pub struct MemoryCapError {
    /// What is wrong with it as a size, and what separates that from the rest; empty for what is none.
    found: String,
}

impl MemoryCap {
    /// The cap of a graph that needs `peak_bytes` as it stands; `None` is no limit.
    #[must_use]
    pub fn bytes(self, peak_bytes: u64) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Normal => Some(peak_bytes.saturating_add((peak_bytes / 20).max(1 << 30))),
            Self::Same => Some(peak_bytes),
            Self::More(share) => {
                let more = u128::from(peak_bytes) * u128::from(share) / 10_000;
                Some(peak_bytes.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)))
            }
            Self::Bytes(bytes) => Some(bytes),
        }
    }

    /// Whether it depends on what a graph needs as it stands.
    #[must_use]
    pub const fn is_relative(self) -> bool {
        matches!(self, Self::Normal | Self::Same | Self::More(_))
    }
}

impl std::str::FromStr for MemoryCap {
    type Err = MemoryCapError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || MemoryCapError { found: String::new() };
        Ok(match text {
            "none" => Self::None,
            "normal" => Self::Normal,
            "same" => Self::Same,
            _ => match text.strip_prefix('+') {
                Some(share) => {
                    let percent = share.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
                    let percent = percent.filter(|percent| (0.0..=100_000.0).contains(percent)).ok_or_else(error)?;
                    Self::More((percent * 100.0).round() as u64)
                }
                None => {
                    let bytes = parse_bytes(text);
                    Self::Bytes(bytes.map_err(|error| MemoryCapError { found: format!("{error}; ") })?)
                }
            },
        })
    }
}

impl std::fmt::Display for MemoryCap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::None => f.write_str("none"),
            Self::Normal => f.write_str("normal"),
            Self::Same => f.write_str("same"),
            Self::More(share) => match (share / 100, share % 100) {
                (percent, 0) => write!(f, "+{percent}%"),
                (percent, part) if part % 10 == 0 => write!(f, "+{percent}.{}%", part / 10),
                (percent, part) => write!(f, "+{percent}.{part:02}%"),
            },
            Self::Bytes(bytes) => f.write_str(&format_bytes(bytes)),
        }
    }
}

/// The most bytes alive at once in a graph as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Alive {
    /// How many bytes; at most [`u64::MAX`].
    pub peak_bytes: u64,
    /// The node at which that is first so; `None` where nothing is alive.
    pub peak_at: Option<NodeId>,
    /// Values whose size is not known; they count as nothing.
    pub unknown: usize,
}

impl Alive {
    /// Counts a graph's bytes, inputs not counted. The graph must pass [`verify`](crate::ir::verify()). Cost: near-linear.
    ///
    /// ```
    /// use bucketeer::{ir::text::parse, passes::memory::Alive};
    ///
    /// let graph = parse("a = input f32[4]; b = aten.neg.default(a) : f32[4]; c = aten.neg.default(b) : f32[4]; output(c)")?;
    /// let alive = Alive::of(&graph);
    /// assert_eq!((alive.peak_bytes, alive.peak_at.map(|at| graph.name_of(at))), (32, Some("c")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        Lives::of(graph).peak(graph)
    }
}

/// What a bucket pass did to keep a cap on memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryUse {
    /// The most bytes that may be alive at once.
    pub cap_bytes: u64,
    /// The most that were before the pass. Where that is more than the cap, nothing that makes it more was merged.
    pub before_bytes: u64,
    /// The node at which that was first so.
    pub before_at: Option<String>,
    /// The most that are after it.
    pub after_bytes: u64,
    /// Values whose size is not known; they count as nothing, so that the cap says nothing of them.
    pub unknown: usize,
    /// Buckets of the policy that were cut into smaller ones, or given up.
    pub cut: usize,
    /// Members of those that were left alone.
    pub declined: usize,
}

impl MemoryUse {
    /// What a pass uses that changes nothing; `None` where there is no cap.
    pub(super) fn of(graph: &Graph, cap: MemoryCap) -> Option<Self> {
        if cap == MemoryCap::None {
            return None;
        }
        let Alive { peak_bytes, peak_at, unknown } = Alive::of(graph);
        Some(Self {
            cap_bytes: cap.bytes(peak_bytes)?,
            before_bytes: peak_bytes,
            before_at: peak_at.map(|at| graph.name_of(at).to_owned()),
            after_bytes: peak_bytes,
            unknown,
            cut: 0,
            declined: 0,
        })
    }

    /// Whether the graph was above the cap before the pass.
    #[must_use]
    pub const fn was_above(&self) -> bool {
        self.before_bytes > self.cap_bytes
    }

    /// The use of passes that ran one after the other, under one cap.
    #[must_use]
    pub fn followed_by(self, later: Self) -> Self {
        Self {
            cap_bytes: self.cap_bytes,
            before_bytes: self.before_bytes,
            before_at: self.before_at,
            after_bytes: later.after_bytes,
            unknown: later.unknown,
            cut: self.cut + later.cut,
            declined: self.declined + later.declined,
        }
    }
}

impl std::fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cap_bytes, before_bytes, before_at, after_bytes, unknown, cut, declined } = self;
        write!(f, "at most {cap_bytes} bytes may be alive at once; {before_bytes} were")?;
        if let Some(at) = before_at {
            write!(f, ", at `{at}`")?;
        }
        write!(f, ", and {after_bytes} are; buckets cut: {cut}, collectives declined: {declined}")?;
        if *unknown > 0 {
            write!(f, "; values of unknown size, not counted: {unknown}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_a_word_a_share_or_a_size() {
        let cap = |text: &str| text.parse::<MemoryCap>().map(|cap| cap.bytes(1 << 40));
        assert_eq!(cap("normal"), Ok(Some((1 << 40) + (1 << 40) / 20)));
        assert_eq!("normal".parse::<MemoryCap>().unwrap().bytes(1000), Some(1000 + (1 << 30)));
        assert_eq!(cap("same"), Ok(Some(1 << 40)));
        assert_eq!(cap("+0%"), Ok(Some(1 << 40)));
        assert_eq!("+2.5%".parse::<MemoryCap>().unwrap().bytes(1000), Some(1025));
        assert_eq!(cap("80GB"), Ok(Some(80_000_000_000)));
        assert_eq!(cap("none"), Ok(None));
        for text in ["+5", "+x%", "+-1%", "much", "-5%", ""] {
            assert!(cap(text).unwrap_err().to_string().contains("expected normal"), "{text}");
        }
    }

    #[test]
    fn a_cap_prints_as_it_is_read() {
        for text in ["none", "normal", "same", "+5%", "+2.5%", "+0.07%", "+0%", "80GB", "3KiB", "7"] {
            assert_eq!(text.parse::<MemoryCap>().unwrap().to_string(), text);
        }
    }
}
