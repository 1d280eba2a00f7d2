//! What messages cost.

use crate::hull;

/// Most pieces of one message cost.
pub const MOST_PIECES: usize = 8;

/// A straight line: a time to start, and a time for each byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Piece {
    /// Nanoseconds of a message without bytes.
    pub alpha_ns: u64,
    /// Nanoseconds for `ns_per_byte_den` bytes.
    pub ns_per_byte_num: u64,
    /// Bytes that take `ns_per_byte_num` nanoseconds; not 0, which counts as 1.
    pub ns_per_byte_den: u64,
}

impl Piece {
    /// The line that is closest to measured times, given as bytes and nanoseconds, as [`MessageCost::fit`] has it.
    #[must_use]
    pub fn fit(measured: &[(u64, u64)]) -> Self {
        hull::fit_line(measured).piece()
    }

    /// Nanoseconds of a message of so many bytes, at most [`u64::MAX`].
    #[inline]
    #[must_use]
    pub fn ns(&self, bytes: u64) -> u64 {
        self.alpha_ns.saturating_add(self.bytes_ns(bytes))
    }

    /// `ceil(bytes * num / den)`, at most [`u64::MAX`].
    #[inline]
    fn bytes_ns(&self, bytes: u64) -> u64 {
        let (num, den) = (self.ns_per_byte_num, self.ns_per_byte_den.max(1));
        match bytes.checked_mul(num) {
            Some(product) => product.div_ceil(den),
            None => {
                let exact = (u128::from(bytes) * u128::from(num)).div_ceil(u128::from(den));
                u64::try_from(exact).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The time of messages of one kind in one group: the least of one to eight lines.
///
/// With the feature `serde` it is written as the list of its pieces, and read through [`MessageCost::new`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "Vec<Piece>"))]
pub struct MessageCost(Vec<Piece>);

/// Why pieces are no cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a message cost has {found} pieces, or one that divides by 0; expected 1 to {MOST_PIECES} with `ns_per_byte_den` above 0"
)]
#[non_exhaustive]
pub struct PiecesError {
    /// How many there were.
    pub found: usize,
}

impl TryFrom<Vec<Piece>> for MessageCost {
    type Error = PiecesError;

    fn try_from(pieces: Vec<Piece>) -> Result<Self, PiecesError> {
        Self::new(pieces)
    }
}

impl MessageCost {
    /// A cost of these pieces, as they are.
    ///
    /// # Errors
    /// [`PiecesError`], unless there are one to eight ([`MOST_PIECES`]) and none divides by 0.
    pub fn new(pieces: Vec<Piece>) -> Result<Self, PiecesError> {
        let fits = (1..=MOST_PIECES).contains(&pieces.len()) && pieces.iter().all(|piece| piece.ns_per_byte_den > 0);
        if fits { Ok(Self(pieces)) } else { Err(PiecesError { found: pieces.len() }) }
    }

    /// Of one to eight pieces, none of which divides by 0.
    pub(crate) fn of_pieces(pieces: Vec<Piece>) -> Self {
        debug_assert!(Self::new(pieces.clone()).is_ok(), "{pieces:?}");
        Self(pieces)
    }

    /// The least of any number of lines: of those that are somewhere the lowest, the one that starts lowest first. Slopes are
    /// rounded up to whole nanoseconds for a GiB. Of more than eight those go that raise the curve least, as a share of it;
    /// of none it is 0.
    #[must_use]
    pub fn least_of(lines: impl IntoIterator<Item = Piece>) -> Self {
        hull::cost(lines.into_iter().map(|line| hull::Line::of(&line)).collect())
    }

    /// The mean at every size of two costs, each with its weight, rounded up as [`least_of`](Self::least_of) does. Weights that
    /// are both 0 count as equal.
    ///
    /// ```
    /// use bucketeer_chain::{MessageCost, Piece};
    ///
    /// let cost = |alpha_ns| MessageCost::least_of([Piece { alpha_ns, ns_per_byte_num: 1, ns_per_byte_den: 64 }]);
    /// // Between 8 and 16 ranks, 10 are nearer to 8.
    /// let between = MessageCost::mean([(&cost(8_000), 16 - 10), (&cost(16_000), 10 - 8)]);
    /// assert_eq!(between.ns(1 << 20), 10_000 + (1 << 14));
    /// ```
    #[must_use]
    pub fn mean(weighted: [(&Self, u32); 2]) -> Self {
        hull::mean(weighted)
    }

    /// The least cost that is not below any of these points of bytes and nanoseconds; a little more where that would take more
    /// than eight lines. Beyond the last point it goes on as between the last two. Of no points it is 0. Points beyond
    /// [`i64::MAX`] bytes or nanoseconds count as there.
    ///
    /// ```
    /// use bucketeer_chain::MessageCost;
    ///
    /// let cost = MessageCost::over(&[(0, 10), (100, 200), (200, 210), (300, 400)]);
    /// // No curve that bends down alone comes closer to the third.
    /// assert_eq!([0, 100, 200, 300].map(|bytes| cost.ns(bytes)), [10, 200, 300, 400]);
    /// ```
    #[must_use]
    pub fn over(points: &[(u64, u64)]) -> Self {
        hull::over(points)
    }

    /// The cost that is closest to measured times, given as bytes and nanoseconds: the sum of its relative errors is the least, so
    /// that single times that are off their neighbours bend nothing. Lines that move no size by more than 2 % are left out. It
    /// starts at 85 % of the shortest time at least. It is found in a time that grows with the cube of the number of sizes,
    /// which is some forty.
    ///
    /// ```
    /// use bucketeer_chain::MessageCost;
    ///
    /// let measured: Vec<(u64, u64)> = (12..30).map(|at| 1 << at).map(|bytes| (bytes, 20_000 + bytes / 128)).collect();
    /// let cost = MessageCost::fit(&measured);
    /// assert_eq!(cost.pieces().len(), 1);
    /// assert_eq!(cost.ns(1 << 26), 20_000 + (1 << 26) / 128);
    /// ```
    #[must_use]
    pub fn fit(measured: &[(u64, u64)]) -> Self {
        hull::fit(measured)
    }

    /// The cost on links that are so many hundredths as fast: bytes take less time, starts the same.
    #[must_use]
    pub fn with_faster_links(&self, hundredths: u32) -> Self {
        let faster = |piece: &Piece| {
            let num = u128::from(piece.ns_per_byte_num) * 100;
            let den = u128::from(piece.ns_per_byte_den) * u128::from(hundredths.max(1));
            // Both below 2^64 again; what is cut off is below a 2^40th.
            let shift = 64u32.saturating_sub(num.max(den).leading_zeros());
            let fit = |number: u128| u64::try_from(number >> shift).unwrap_or(u64::MAX);
            Piece { ns_per_byte_num: fit(num), ns_per_byte_den: fit(den).max(1), ..*piece }
        };
        Self::of_pieces(self.0.iter().map(faster).collect())
    }

    /// Its pieces: one to eight, none of which divides by 0.
    #[inline]
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// Nanoseconds of a message of so many bytes, at most [`u64::MAX`].
    #[inline]
    #[must_use]
    pub fn ns(&self, bytes: u64) -> u64 {
        self.0.iter().map(|piece| piece.ns(bytes)).min().unwrap_or(0)
    }

    /// The least time to start a message, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn alpha_ns(&self) -> u64 {
        self.0.iter().map(|piece| piece.alpha_ns).min().unwrap_or(0)
    }

    /// The least time that bytes take beside starting, in nanoseconds: at the smallest slope, rounded up.
    #[inline]
    #[must_use]
    pub fn bytes_ns(&self, bytes: u64) -> u64 {
        self.0.iter().map(|piece| piece.bytes_ns(bytes)).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(alpha_ns: u64, ns_per_byte_num: u64, ns_per_byte_den: u64) -> Piece {
        Piece { alpha_ns, ns_per_byte_num, ns_per_byte_den }
    }

    #[test]
    fn a_message_takes_its_cheapest_piece_rounded_up() {
        let cost = MessageCost::new(vec![piece(18_000, 1, 100), piece(25_000, 1, 368)]).unwrap();
        assert_eq!(cost.ns(0), 18_000);
        assert_eq!(cost.ns(1), 18_001);
        assert_eq!(cost.ns(100), 18_001);
        assert_eq!(cost.ns(1 << 20), 25_000 + (1u64 << 20).div_ceil(368));
        assert_eq!((cost.alpha_ns(), cost.bytes_ns(369)), (18_000, 2));
        // Far above what any machine sends, and no overflow.
        assert_eq!(MessageCost::new(vec![piece(1, 7, 1)]).unwrap().ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn links_twice_as_fast_halve_what_bytes_take_and_no_start() {
        let costs = [piece(50, 3, 7), piece(50, u64::MAX / 3, u64::MAX)];
        let [a, b] = costs.map(|piece| MessageCost::new(vec![piece]).unwrap());
        let bytes = 7 << 40;
        assert_eq!((a.ns(bytes), a.with_faster_links(200).ns(bytes)), (50 + (3 << 40), 50 + (3 << 39)));
        let (before, after) = (b.ns(bytes) - 50, b.with_faster_links(300).ns(bytes) - 50);
        assert!(after.abs_diff(before / 3) < 4, "{before} {after}");
    }

    #[test]
    fn costs_without_pieces_or_with_a_zero_below_the_line_are_refused() {
        assert_eq!(MessageCost::new(Vec::new()), Err(PiecesError { found: 0 }));
        assert_eq!(MessageCost::new(vec![piece(1, 1, 0)]), Err(PiecesError { found: 1 }));
        assert_eq!(MessageCost::new(vec![piece(1, 1, 1); 9]), Err(PiecesError { found: 9 }));
    }

    #[test]
    fn every_way_to_make_a_cost_keeps_to_what_a_cost_is() {
        let most = u64::MAX;
        let lines: Vec<Piece> = [0, 1, 1 << 40, most]
            .iter()
            .flat_map(|&alpha| {
                [(0, 0), (0, most), (most, 0), (most, 1), (1, most), (5, 3)].map(|(num, den)| piece(alpha, num, den))
            })
            .chain((0..40).map(|at| piece(1 << at, 1 << (40 - at), 1 << 10)))
            .collect();
        let points: Vec<(u64, u64)> =
            lines.iter().map(|line| (line.alpha_ns, line.ns_per_byte_num)).chain([(most, most), (3, most)]).collect();
        let (least, over) = (MessageCost::least_of(lines), MessageCost::over(&points));
        let means = [(0, 0), (1, 0), (u32::MAX, u32::MAX)].map(|(a, b)| MessageCost::mean([(&least, a), (&over, b)]));
        let none = [MessageCost::least_of([]), MessageCost::over(&[]), MessageCost::fit(&[])];
        assert_eq!(none.each_ref().map(|cost| cost.ns(most)), [0; 3]);
        let faster = [0, 1, u32::MAX].map(|hundredths| least.with_faster_links(hundredths));
        let line = MessageCost::new(vec![Piece::fit(&points)]).unwrap();
        let all = [least, over, MessageCost::fit(&points), line];
        for cost in all.into_iter().chain(means).chain(none).chain(faster) {
            assert_eq!(MessageCost::new(cost.pieces().to_vec()), Ok(cost));
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_cost_is_written_as_its_pieces_and_read_if_it_is_one() {
        let cost = MessageCost::new(vec![piece(7, 8, 9)]).unwrap();
        let text = r#"[{"alpha_ns":7,"ns_per_byte_num":8,"ns_per_byte_den":9}]"#;
        assert_eq!(serde_json::to_string(&cost).unwrap(), text);
        assert_eq!(serde_json::from_str::<MessageCost>(text).unwrap(), cost);
        for (text, found) in [("[]", 0), (&*text.replace('9', "0"), 1)] {
            let error = serde_json::from_str::<MessageCost>(text).unwrap_err().to_string();
            assert!(error.starts_with(&PiecesError { found }.to_string()), "{error}");
        }
    }
}
