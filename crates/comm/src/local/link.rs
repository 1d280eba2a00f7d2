//! A model of a network's link, to show what a network would do.

use std::str::FromStr;
use std::time::Duration;

/// A call is done no earlier than `alpha` plus its bytes over `beta` after it starts; calls on one group, or between
/// one pair of sender and receiver, start one after another. Its bytes are the larger of its input and output.
///
/// Written `alpha=20us,beta=10GB/s`; each part may be left out: no latency, no limit.
///
/// ```
/// use bucketeer_comm::local::Link;
/// use std::time::Duration;
///
/// let link: Link = "alpha=20us,beta=10GB/s".parse()?;
/// assert_eq!(link.duration(1_000_000), Duration::from_micros(120));
/// # Ok::<(), bucketeer_comm::local::LinkError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Latency of a call.
    pub alpha: Duration,
    /// Bandwidth in bytes per second; infinite for no limit.
    pub beta_bytes_per_s: f64,
}

/// What a call takes between ranks that share memory, beside moving bytes (`docs/speed.md`).
const CALL_S: f64 = 10e-6;
/// Bytes per second that one thread copies, out of the caches.
const COPY_BYTES_PER_S: f64 = 6.7e9;

/// The largest tensor that is worth copying into a bucket and out again: what copying it twice takes, a call takes, too.
///
/// ```
/// use bucketeer_comm::local::{Link, worthwhile_member_bytes};
///
/// assert_eq!(worthwhile_member_bytes(None), 32 << 10);
/// let link: Link = "alpha=50us".parse()?;
/// assert_eq!(worthwhile_member_bytes(Some(&link)), 196 << 10);
/// # Ok::<(), bucketeer_comm::local::LinkError>(())
/// ```
#[must_use]
pub fn worthwhile_member_bytes(link: Option<&Link>) -> u64 {
    let alpha_s = link.map_or(0.0, |link| link.alpha.as_secs_f64());
    let bytes = (CALL_S + alpha_s) * COPY_BYTES_PER_S / 2.0;
    // Whole KiB read better, and say that this is not an exact number.
    (bytes / 1024.0) as u64 * 1024
}

/// Why a text is not a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{part}` is not part of a link: {expected}; a link is written `alpha=20us,beta=10GB/s`")]
pub struct LinkError {
    /// The part at fault.
    pub part: String,
    /// What would have been right.
    pub expected: &'static str,
}

const TIMES: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
const RATES: [(&str, f64); 8] = [
    ("KB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("KiB/s", 1024.0),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
    ("B/s", 1.0),
];

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let mut link = Self { alpha: Duration::ZERO, beta_bytes_per_s: f64::INFINITY };
        let mut seen = [false; 2];
        for part in text.split(',').map(str::trim) {
            let wrong = |expected| LinkError { part: part.to_owned(), expected };
            let (name, value) = part.split_once('=').ok_or_else(|| wrong("expected `alpha=` or `beta=`"))?;
            let (name, value) = (name.trim(), value.trim());
            let place = ["alpha", "beta"].iter().position(|known| *known == name);
            let place = place.ok_or_else(|| wrong("expected `alpha` or `beta`"))?;
            if std::mem::replace(&mut seen[place], true) {
                return Err(wrong("it is given twice"));
            }
            if name == "alpha" {
                let wrong = || wrong("expected a time such as 20us, 1.5ms or 0s, up to an hour");
                let seconds = number(value, &TIMES).filter(|seconds| *seconds <= 3600.0).ok_or_else(wrong)?;
                link.alpha = Duration::from_secs_f64(seconds);
            } else {
                let wrong = || wrong("expected a rate above zero such as 10GB/s, 800MiB/s or 1e9B/s");
                link.beta_bytes_per_s = number(value, &RATES).filter(|rate| *rate > 0.0).ok_or_else(wrong)?;
            }
        }
        Ok(link)
    }
}

/// A number that is finite and not negative, times what its unit stands for.
fn number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let strip = |(unit, scale): &(&str, f64)| Some((text.strip_suffix(unit)?.trim_end().parse::<f64>().ok()?, *scale));
    let (value, scale) = units.iter().find_map(strip)?;
    let value = value * scale;
    (value.is_finite() && value >= 0.0).then_some(value)
}

impl Link {
    /// How long a call of that many bytes takes at least; at most about 136 years.
    #[must_use]
    pub fn duration(&self, bytes: u64) -> Duration {
        let seconds = bytes as f64 / self.beta_bytes_per_s;
        let moving = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(Duration::from_secs(1 << 32));
        self.alpha.saturating_add(moving)
    }
}
