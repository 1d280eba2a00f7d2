//! Which spans of a lane one mark stands for, and what is told about it.
//!
//! A span that is as wide as a column has a mark of its own. Thinner ones share a mark where they begin in one column, and where they
//! compute without a gap. Waiting is marked apart, by its share, so that it is seen however thin it is. Columns grow until the marks are few, so that the size of a picture has a bound that no run exceeds.
//! Cost: linear in the spans.

use super::lanes::{COLUMNS, MOST_MARKS, Mark, WIDTH};
use super::text::{cut, visible};
use super::timeline::{KINDS, TimedLane, TimedSpan, WAIT, colour};
use bucketeer_types::times::human;

/// Names that are told of a mark that stands for several spans.
const MOST_NAMES: usize = 12;

/// Lines that are told of one span beside its name and times.
const MOST_NOTES: usize = 8;

/// The marks of lanes that stand in one picture, by lane. The whole width is this many nanoseconds.
pub(super) fn marks<'a>(lanes: impl Iterator<Item = &'a TimedLane> + Clone, width_ns: u64) -> Vec<Vec<Shown>> {
    let mut column = 1;
    loop {
        let scale = Scale { width_ns: width_ns.max(1), column };
        let shown: Vec<Vec<&[TimedSpan]>> = lanes.clone().map(|lane| scale.runs(&lane.spans)).collect();
        if column >= WIDTH || shown.iter().map(Vec::len).sum::<usize>() <= MOST_MARKS {
            return shown.into_iter().map(|runs| runs.into_iter().map(Shown::of).collect()).collect();
        }
        column *= 2;
    }
}

/// A mark, and when it is.
pub(super) struct Shown {
    pub start_ns: u64,
    pub end_ns: u64,
    /// How many spans it stands for.
    pub spans: usize,
    /// Of several spans: how much of their time is waiting, in hundredths.
    pub waiting: u64,
    pub mark: Mark,
}

impl Shown {
    fn of(spans: &[TimedSpan]) -> Self {
        let (first, last) = (&spans[0], &spans[spans.len() - 1]);
        let (start_ns, end_ns) = (first.start_ns, end(last));
        let (what, name, mut details) = match spans {
            [one] => (one.what, visible(&one.name), vec![format!("{} {}", one.what, visible(&one.name))]),
            _ => several(spans),
        };
        let waiting = if spans.len() > 1 { hundredths_waiting(spans) } else { 0 };
        details.push(format!(
            "{}, from {} to {}",
            human(end_ns.saturating_sub(start_ns)),
            human(start_ns),
            human(end_ns)
        ));
        if let [one] = spans {
            details.extend(one.notes.iter().take(MOST_NOTES).map(|note| visible(note)));
        }
        for line in &mut details {
            *line = cut(line, COLUMNS);
        }
        let mark = Mark { name, fill: colour(what), details, ..Mark::default() };
        Self { start_ns, end_ns, spans: spans.len(), waiting, mark }
    }
}

fn hundredths_waiting(spans: &[TimedSpan]) -> u64 {
    let sum = |spans: &mut dyn Iterator<Item = &TimedSpan>| spans.map(|span| u128::from(span.ns)).sum::<u128>();
    let waiting = sum(&mut spans.iter().filter(|span| span.what == WAIT));
    (waiting * 100 / sum(&mut spans.iter()).max(1)) as u64
}

/// What most of the time of several spans is but waiting, what they are called together, and what is told about them.
fn several(spans: &[TimedSpan]) -> (&'static str, String, Vec<String>) {
    let mut most = (0, WAIT);
    let mut sums = Vec::new();
    for (what, ..) in KINDS {
        let of_kind = spans.iter().filter(|span| span.what == what);
        let (count, ns) = of_kind.fold((0, 0u64), |(count, ns), span| (count + 1, ns.saturating_add(span.ns)));
        if count > 0 {
            sums.push(format!("{count} of {what}, {}", human(ns)));
            if what != WAIT {
                most = most.max((ns, what));
            }
        }
    }
    let names: Vec<String> = spans.iter().take(MOST_NAMES).map(|span| cut(&visible(&span.name), 40)).collect();
    let more = spans.len().saturating_sub(MOST_NAMES);
    let more = if more > 0 { vec![format!("and {more} more")] } else { Vec::new() };
    // As many names as fit on a line.
    let names = names.chunks(3).map(|line| line.join(", "));
    (most.1, format!("{} spans", spans.len()), std::iter::once(sums.join("; ")).chain(names).chain(more).collect())
}

fn end(span: &TimedSpan) -> u64 {
    span.start_ns.saturating_add(span.ns)
}

/// How long a pixel is, and how many of them a column is wide.
#[derive(Clone, Copy)]
struct Scale {
    width_ns: u64,
    column: u64,
}

impl Scale {
    fn column_of(self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(WIDTH) / u128::from(self.width_ns) / u128::from(self.column)) as u64
    }

    fn is_thin(self, span: &TimedSpan) -> bool {
        u128::from(span.ns) * u128::from(WIDTH) < u128::from(self.column) * u128::from(self.width_ns)
    }

    /// The spans that one mark stands for, in order of time.
    fn runs(self, spans: &[TimedSpan]) -> Vec<&[TimedSpan]> {
        let close = |one: &TimedSpan, next: &TimedSpan| {
            let computes_on = one.what == next.what && next.what == "compute" && end(one) == next.start_ns;
            let is_near = self.column_of(one.start_ns) == self.column_of(next.start_ns);
            self.is_thin(one) && self.is_thin(next) && (is_near || computes_on)
        };
        spans.chunk_by(close).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(what: &'static str, start_ns: u64, ns: u64) -> TimedSpan {
        TimedSpan { name: format!("{what}{start_ns}"), what, start_ns, ns, notes: Vec::new() }
    }

    /// How many spans each mark stands for, where a pixel is 10 ns.
    fn shared(spans: Vec<TimedSpan>) -> Vec<usize> {
        let lane = TimedLane { name: "one".into(), spans };
        marks([&lane].into_iter(), 10 * WIDTH)[0].iter().map(|shown| shown.spans).collect()
    }

    #[test]
    fn thin_computation_is_one_mark_up_to_the_next_gap() {
        let thin = |from: u64| (0..5).map(move |nth| span("compute", from + nth * 9, 9));
        assert_eq!(shared(thin(0).chain(thin(100)).collect()), [5, 5]);
        assert_eq!(shared(thin(0).chain([span("compute", 45, 10), span("compute", 55, 9)]).collect()), [5, 1, 1]);
    }

    #[test]
    fn messages_share_a_mark_in_one_pixel_alone() {
        assert_eq!(shared(vec![span("comm", 0, 4), span("comm", 4, 4), span("comm", 10, 4)]), [2, 1]);
        assert_eq!(shared(vec![span("comm", 0, 4), span("comm", 4, 10), span("comm", 14, 4)]), [1, 1, 1]);
    }

    #[test]
    fn a_shared_mark_tells_how_much_there_is_of_each_and_what_share_is_waiting() {
        let spans = [span("compute", 0, 2), span("wait", 2, 5), span("compute", 7, 2)];
        let shown = Shown::of(&spans);
        assert_eq!((shown.mark.fill, shown.waiting), (colour("compute"), 55));
        assert_eq!(Shown::of(&spans[1..2]).mark.fill, colour("wait"));
        assert_eq!(Shown::of(&[span("wait", 0, 1), span("wait", 1, 1)]).mark.fill, colour("wait"));
        assert_eq!(
            shown.mark.details,
            ["2 of compute, 4 ns; 1 of wait, 5 ns", "compute0, wait2, compute7", "9 ns, from 0 ns to 9 ns"]
        );
    }
}
