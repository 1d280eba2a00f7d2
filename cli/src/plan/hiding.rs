//! What messages hide behind.

use crate::units::{count, time};
use bucketeer::ir::Graph;
use bucketeer::passes::schedule::{Doing, Lane, Launch, Span, Timeline};

/// What one message hides behind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hiding {
    /// How long computation goes on beside it.
    pub ns: u64,
    /// How many calls those are.
    calls: usize,
    /// The span of them that goes on longest, and how long.
    longest: Option<(u64, Span)>,
}

impl Hiding {
    /// For each launch of a run, in program order. Costs of groups times spans.
    pub fn all(graph: &Graph, run: &Timeline) -> Vec<Self> {
        let mut computing = run.spans(graph);
        computing.retain(|span| span.lane == Lane::Compute && span.doing == Doing::Computing);
        run.launches.iter().map(|launch| Self::of(launch, &computing)).collect()
    }

    fn of(launch: &Launch, computing: &[Span]) -> Self {
        let first = computing.partition_point(|span| span.start_ns + span.ns <= launch.start_ns);
        let mut hiding = Self::default();
        for span in computing[first..].iter().take_while(|span| span.start_ns < launch.end_ns) {
            let ns = (span.start_ns + span.ns).min(launch.end_ns).saturating_sub(span.start_ns.max(launch.start_ns));
            hiding.ns += ns;
            hiding.calls += 1;
            if hiding.longest.is_none_or(|(most, _)| ns > most) {
                hiding.longest = Some((ns, *span));
            }
        }
        hiding
    }

    /// In words, with what stays exposed.
    pub fn in_words(&self, graph: &Graph, launch: &Launch) -> String {
        let hides = self.longest.map_or("hides behind nothing".to_owned(), |(_, span)| {
            let calls = count(self.calls, "call");
            format!("hides {} behind {calls}, most of it `{}`", time(self.ns), graph.name_of(span.node))
        });
        let exposed = match launch.stalled_ns {
            0 => "computation never stands still for it".to_owned(),
            ns => format!("computation stands still for it for {}", time(ns)),
        };
        format!("{hides}; {exposed}")
    }
}
