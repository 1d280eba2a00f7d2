//! What the members of a group come to agree on when it fails, and how.
//!
//! A rank that is in trouble asks all members where they are, by way of the store, and waits a little for the answers.
//! The first verdict in the store is everyone's.

use crate::compare::{Side, difference};
use crate::error::{CommError, Fate, Site};
use crate::forms;
use crate::signature::{CallSignature, Described};
use bucketeer_types::GlobalRank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A launch that something is said of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchSite {
    pub op: String,
    pub seq: u64,
    /// Group ranks of sender and receiver, for sends and receives.
    pub pair: Option<(u32, u32)>,
}

/// Why a group fails.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GroupFailure {
    Timeout {
        #[serde(flatten)]
        place: LaunchSite,
        waited_ms: u64,
        #[serde(with = "forms::ranks")]
        arrived: Vec<GlobalRank>,
        #[serde(with = "forms::ranks")]
        missing: Vec<GlobalRank>,
    },
    Mismatch {
        #[serde(flatten)]
        place: LaunchSite,
        what: String,
        #[serde(with = "forms::ranks")]
        between: Vec<GlobalRank>,
        values: (String, String),
    },
    /// A rank went; `after` as many collectives of the group were done for it.
    Remote {
        #[serde(with = "forms::rank")]
        rank: GlobalRank,
        fate: Fate,
        after: Option<u64>,
    },
    Aborted {
        #[serde(with = "forms::rank")]
        by: GlobalRank,
    },
    Failed {
        #[serde(with = "forms::rank")]
        rank: GlobalRank,
        reason: String,
        elsewhere: bool,
    },
}

/// What takes place before all launches.
pub const CONNECT: &str = "connect";

/// The word for an op, or for what is not an op.
fn known_op(name: &str) -> &'static str {
    const KNOWN: [&str; 12] = [
        "all_reduce",
        "all_gather_into",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "all_to_all_single",
        "send",
        "recv",
        "barrier",
        "coalesced",
        CONNECT,
        "announce",
    ];
    KNOWN.into_iter().find(|known| *known == name).unwrap_or("call")
}

/// The word for what two ranks differ in.
fn known_difference(what: &str) -> &'static str {
    const KNOWN: [&str; 12] = [
        "number of calls",
        "op",
        "reduction",
        "root",
        "dtype",
        "count",
        "size",
        "split",
        "NCCL version",
        "members",
        "number of launches",
        "order of launches",
    ];
    KNOWN.into_iter().find(|known| *known == what).unwrap_or("call")
}

impl GroupFailure {
    /// The launch that it is of, if it is of one.
    pub const fn place(&self) -> Option<&LaunchSite> {
        match self {
            Self::Timeout { place, .. } | Self::Mismatch { place, .. } => Some(place),
            _ => None,
        }
    }

    /// The error of the launch that it is of; else of the group.
    pub fn describe(&self, group: &str) -> CommError {
        let (op, seq) = self.place().map_or(("watchdog", None), |place| (known_op(&place.op), Some(place.seq)));
        // What cannot connect has no number.
        let site = Site { group: group.into(), op, seq: seq.filter(|_| op != CONNECT) };
        match self.clone() {
            Self::Timeout { waited_ms, arrived, missing, .. } => {
                CommError::Timeout { site, waited: Duration::from_millis(waited_ms), arrived, missing }
            }
            Self::Mismatch { what, between, values, .. } => {
                let at = |index: usize| between.get(index).copied().unwrap_or(GlobalRank(0));
                let ranks = (at(0), at(1));
                CommError::Mismatch { site, what: known_difference(&what), ranks, values: Box::new(values) }
            }
            Self::Remote { rank, fate, .. } => CommError::Remote { site, rank, fate },
            Self::Aborted { by } => CommError::Aborted { site, by },
            Self::Failed { rank, reason, elsewhere } => {
                CommError::Failed { site, rank, reason: reason.into(), elsewhere }
            }
        }
    }

    /// The ranks at fault. Of a mismatch both: which of them is wrong, nobody can tell.
    pub fn culprits(&self) -> Vec<GlobalRank> {
        match self {
            Self::Mismatch { between, .. } => between.clone(),
            Self::Aborted { by } => vec![*by],
            _ => self.describe("").culprits(),
        }
    }
}

/// Where one member is, in its own words.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Collectives launched.
    pub launched: u64,
    /// Sends to and receives from others launched: whether sends, the other's group rank, how many.
    pub lanes: Vec<(bool, u32, u64)>,
    /// What its library or device says, and whether that it is another rank's fault.
    pub error: Option<(String, bool)>,
    /// Its last launches.
    pub recent: Vec<Launch>,
}

/// One launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Launch {
    pub seq: u64,
    pub pair: Option<(u32, u32)>,
    pub calls: Vec<CallSignature>,
    /// How many there were; those above a limit are not kept.
    pub of: usize,
}

impl Launch {
    fn place(&self) -> LaunchSite {
        let op = match &self.calls[..] {
            [one] if self.of == 1 => one.op().name(),
            _ => "coalesced",
        };
        LaunchSite { op: op.to_owned(), seq: self.seq, pair: self.pair }
    }
}

impl Report {
    /// Whether the member had launched its part.
    fn has_launched(&self, own: u32, place: &LaunchSite) -> bool {
        let Some((from, to)) = place.pair else { return self.launched > place.seq };
        let lane = |sends: bool, peer: u32| {
            self.lanes.iter().any(|lane| lane.0 == sends && lane.1 == peer && lane.2 > place.seq)
        };
        match own {
            own if own == from => lane(true, to),
            own if own == to => lane(false, from),
            _ => true,
        }
    }
}

/// What a rank knows when it has to decide.
pub struct View<'a> {
    pub members: &'a [GlobalRank],
    /// Its own place.
    pub own: usize,
    /// By place; none where nothing was heard.
    pub reports: &'a [Option<Report>],
    /// Those of all ranks.
    pub gone: &'a [(GlobalRank, Fate)],
    /// A launch of its own that took too long, and how long.
    pub late: Option<(LaunchSite, Duration)>,
}

/// The first of these that holds: a member is gone; two launched different things; one says that it failed itself; a launch
/// is late; one says that another failed.
pub fn decide(view: &View<'_>) -> GroupFailure {
    // Who leaves while two others have a message on its way is none of it.
    let is_of = |place: &LaunchSite, rank: &GlobalRank| {
        let members = place.pair.map(|(from, to)| [from, to].map(|at| view.members.get(at as usize)));
        members.is_none_or(|members| members.contains(&Some(rank)))
    };
    let matters = |rank: &GlobalRank, fate: Fate| {
        fate != Fate::Left || view.late.as_ref().is_none_or(|(place, _)| is_of(place, rank))
    };
    let gone = view.gone.iter().filter(|(rank, fate)| view.members.contains(rank) && matters(rank, *fate));
    // Whoever left in order may have done so because of the other.
    let gone = gone.min_by_key(|(rank, fate)| (*fate == Fate::Left, *rank));
    if let Some(&(rank, fate)) = gone {
        return GroupFailure::Remote { rank, fate, after: None };
    }
    if let Some(mismatch) = mismatch(view) {
        return mismatch;
    }
    let failed = |elsewhere: bool| {
        let mut places = view.members.iter().zip(view.reports);
        places.find_map(|(rank, report)| {
            let (reason, said) = report.as_ref()?.error.as_ref()?;
            (*said == elsewhere).then(|| GroupFailure::Failed { rank: *rank, reason: reason.clone(), elsewhere })
        })
    };
    if let Some(failed) = failed(false) {
        return failed;
    }
    let silent = || view.members.iter().zip(view.reports).filter(|(_, report)| report.is_none()).map(|(rank, _)| *rank);
    match &view.late {
        Some((place, waited)) => {
            let takes_part = |at: usize| place.pair.is_none_or(|(from, to)| [from, to].contains(&(at as u32)));
            // While ranks connect, whoever answers is there.
            let has = |at: usize, it: &Report| place.op == CONNECT || it.has_launched(at as u32, place);
            let launched = |at: usize| view.reports[at].as_ref().is_some_and(|it| has(at, it));
            let ranks = |has: bool| {
                let places = (0..view.members.len()).filter(|at| takes_part(*at) && launched(*at) == has);
                places.map(|at| view.members[at]).collect()
            };
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            GroupFailure::Timeout { place: place.clone(), waited_ms, arrived: ranks(true), missing: ranks(false) }
        }
        None => match silent().next() {
            Some(rank) if failed(true).is_some() => GroupFailure::Remote { rank, fate: Fate::Lost, after: None },
            _ => failed(true).unwrap_or_else(|| GroupFailure::Failed {
                rank: view.members[view.own],
                reason: "another rank was in trouble, and did not say why".to_owned(),
                elsewhere: true,
            }),
        },
    }
}

/// A member's place, and a launch of its.
type ByPlace<'a> = (usize, &'a Launch);

/// By the number and pair of a launch: those that made it, in place order.
type ByNumber<'a> = BTreeMap<(u64, Option<(u32, u32)>), Vec<ByPlace<'a>>>;

/// The first launch, by number, that two members made differently.
fn mismatch(view: &View<'_>) -> Option<GroupFailure> {
    let mut launches = ByNumber::new();
    for (place, report) in view.reports.iter().enumerate() {
        for launch in report.iter().flat_map(|report| &report.recent) {
            launches.entry((launch.seq, launch.pair)).or_default().push((place, launch));
        }
    }
    launches.values().find_map(|same| {
        let (first, others) = same.split_first()?;
        others.iter().find_map(|other| differing(view, *first, *other))
    })
}

fn differing(view: &View<'_>, one: ByPlace<'_>, other: ByPlace<'_>) -> Option<GroupFailure> {
    // Of a message the sender comes first.
    let swaps = one.1.pair.is_some_and(|(from, _)| one.0 as u32 != from);
    let ((a, first), (b, second)) = if swaps { (other, one) } else { (one, other) };
    let (what, values) = if first.of == second.of {
        let sides = (Side { place: a, calls: &first.calls[..] }, Side { place: b, calls: &second.calls[..] });
        let found = difference(sides.0, sides.1, view.members.len(), true)?;
        (found.what, (found.first, found.second))
    } else {
        ("number of calls", (first.of.to_string(), second.of.to_string()))
    };
    let between = vec![view.members[a], view.members[b]];
    Some(GroupFailure::Mismatch { place: first.place(), what: what.to_owned(), between, values })
}

/// The error of a launch for a verdict on its group.
pub fn error_at(verdict: &GroupFailure, group: &Arc<str>, place: &LaunchSite) -> CommError {
    let mut cause = verdict.describe(group);
    let site = Site { group: group.clone(), op: known_op(&place.op), seq: Some(place.seq) };
    if verdict.place().is_some_and(|other| other.seq == place.seq && other.pair == place.pair) {
        cause = cause.of(site.op);
    }
    Arc::new(cause).at(site)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Call, Op, Operands};
    use bucketeer_types::DType;

    fn gather(bytes: u64) -> CallSignature {
        let arena = Arena::new(64).unwrap();
        let part = |bytes| arena.buffer(0, bytes).unwrap();
        CallSignature::of(&Call::collective(Op::AllGather, Operands::new(part(bytes), part(2 * bytes), DType::F32)))
    }

    fn report(launches: &[u64]) -> Report {
        let launch =
            |(seq, bytes): (usize, &u64)| Launch { seq: seq as u64, pair: None, calls: vec![gather(*bytes)], of: 1 };
        let recent: Vec<Launch> = launches.iter().enumerate().map(launch).collect();
        Report { launched: recent.len() as u64, recent, ..Report::default() }
    }

    fn verdict(reports: &[Option<Report>], gone: &[(GlobalRank, Fate)], late: Option<u64>) -> String {
        let members: Vec<GlobalRank> = (10..10 + reports.len() as u32).map(GlobalRank).collect();
        let late = late
            .map(|seq| (LaunchSite { op: "all_gather_into".to_owned(), seq, pair: None }, Duration::from_millis(1500)));
        let verdict = decide(&View { members: &members, own: 0, reports, gone, late });
        let text = serde_json::to_string(&verdict).unwrap();
        assert_eq!(serde_json::from_str::<GroupFailure>(&text).unwrap(), verdict, "{text}");
        verdict.describe("g").to_string()
    }

    #[test]
    fn who_did_not_launch_is_missing_and_who_says_nothing_is_too() {
        let reports = [Some(report(&[8, 8])), Some(report(&[8])), None, Some(report(&[8, 8, 8]))];
        let expected =
            "group g, all_gather_into #1: not done after 1.5s; ranks 11 and 12 did not arrive, ranks 10 and 13 did";
        assert_eq!(verdict(&reports, &[], Some(1)), expected);
        let reports = [Some(report(&[8, 8])), Some(report(&[8, 8]))];
        let expected =
            "group g, all_gather_into #1: not done after 1.5s; all ranks arrived, but the transfer did not end";
        assert_eq!(verdict(&reports, &[], Some(1)), expected);
    }

    #[test]
    fn a_rank_that_is_gone_explains_more_than_all_else() {
        let reports = [Some(report(&[8])), Some(report(&[4])), None];
        let gone = [(GlobalRank(3), Fate::Lost), (GlobalRank(11), Fate::Left), (GlobalRank(12), Fate::Panicked)];
        assert_eq!(verdict(&reports, &gone, Some(0)), "group g, watchdog: rank 12 panicked");
        assert_eq!(verdict(&reports, &gone[..2], Some(0)), "group g, watchdog: rank 11 dropped its handle");
        let expected =
            "group g, all_gather_into #0: ranks disagree on the count: rank 10 has f32 x 2, rank 11 has f32 x 1";
        assert_eq!(verdict(&reports, &gone[..1], Some(0)), expected);
    }

    #[test]
    fn the_first_launch_that_differs_is_named() {
        let reports = [Some(report(&[8, 8, 8])), None, Some(report(&[8, 4, 4]))];
        let expected =
            "group g, all_gather_into #1: ranks disagree on the count: rank 10 has f32 x 2, rank 12 has f32 x 1";
        assert_eq!(verdict(&reports, &[], None), expected);
    }

    #[test]
    fn the_two_ends_of_a_message_agree_unless_it_has_two_lengths() {
        let end = |call: &Call| {
            let launch = Launch { seq: 0, pair: Some((1, 0)), calls: vec![CallSignature::of(call)], of: 1 };
            Some(Report { recent: vec![launch], ..Report::default() })
        };
        let part = |bytes| Arena::new(64).unwrap().buffer(0, bytes).unwrap();
        let sent = end(&Call::send(part(8), DType::F32, bucketeer_types::GroupRank(0)));
        let [same, other] =
            [8, 12].map(|bytes| end(&Call::recv(part(bytes), DType::F32, bucketeer_types::GroupRank(1))));
        let expected = "group g, watchdog: rank 10 failed: another rank was in trouble, and did not say why";
        assert_eq!(verdict(&[same, sent.clone()], &[], None), expected);
        let expected = "group g, send #0: ranks disagree on the count: rank 11 has f32 x 2, rank 10 has f32 x 3";
        assert_eq!(verdict(&[other, sent], &[], None), expected);
    }

    #[test]
    fn who_leaves_is_not_why_others_wait_for_a_message() {
        let place = LaunchSite { op: "recv".to_owned(), seq: 0, pair: Some((1, 0)) };
        let members = [0, 1, 2].map(GlobalRank);
        let reports = [Some(Report { lanes: vec![(false, 1, 1)], ..Report::default() }), Some(Report::default()), None];
        let of = |gone: u32| {
            let (gone, late) = ([(GlobalRank(gone), Fate::Left)], Some((place.clone(), Duration::from_secs(1))));
            decide(&View { members: &members, own: 0, reports: &reports, gone: &gone, late }).culprits()
        };
        assert_eq!((of(2), of(1)), (vec![GlobalRank(1)], vec![GlobalRank(1)]));
        assert_eq!(of(0), [GlobalRank(0)]);
    }

    #[test]
    fn who_fails_is_blamed_before_those_who_suffer() {
        let with =
            |reason: &str, elsewhere| Some(Report { error: Some((reason.to_owned(), elsewhere)), ..report(&[8]) });
        let reports = [with("remote error", true), with("no memory", false), Some(report(&[8]))];
        assert_eq!(verdict(&reports, &[], Some(0)), "group g, watchdog: rank 11 failed: no memory");
        assert_eq!(verdict(&reports[..1], &[], None), "group g, watchdog: rank 10 failed: remote error");
        let reports = [with("remote error", true), None];
        assert_eq!(verdict(&reports, &[], None), "group g, watchdog: rank 11 went without a word");
        let reports = [Some(report(&[8])), Some(report(&[8]))];
        let expected = "group g, watchdog: rank 10 failed: another rank was in trouble, and did not say why";
        assert_eq!(verdict(&reports, &[], None), expected);
    }

    #[test]
    fn of_a_send_only_its_two_ranks_can_be_missing() {
        let place = LaunchSite { op: "send".to_owned(), seq: 0, pair: Some((0, 2)) };
        let members = [0, 1, 2].map(GlobalRank);
        let sent = Report { lanes: vec![(true, 2, 1)], ..Report::default() };
        let reports =
            [Some(sent), Some(Report::default()), Some(Report { lanes: vec![(false, 0, 0)], ..Report::default() })];
        let late = Some((place.clone(), Duration::from_secs(1)));
        let verdict = decide(&View { members: &members, own: 0, reports: &reports, gone: &[], late });
        assert_eq!(
            verdict.describe("g").to_string(),
            "group g, send #0: not done after 1s; rank 2 did not arrive, rank 0 did"
        );
        let receiver = LaunchSite { op: "recv".to_owned(), ..place.clone() };
        let there = error_at(&verdict, &"g".into(), &receiver);
        assert_eq!(there.to_string(), "group g, recv #0: not done after 1s; rank 2 did not arrive, rank 0 did");
        let collective = LaunchSite { op: "all_reduce".to_owned(), pair: None, ..place };
        let other = error_at(&verdict, &"g".into(), &collective);
        let expected = "group g, all_reduce #0: the group is broken: group g, send #0: not done after 1s; rank 2 did not arrive, rank 0 did";
        assert_eq!(other.to_string(), expected);
    }
}
