//! Pictures of a graph's collectives: what depends on what, and which travel together.
//!
//! A [`Drawing`] holds a box for each collective and the lines between them; [`dot`] writes it for Graphviz, [`svg`] as
//! a picture of its own. [`Lanes`] hold a bar for each collective by program order, and the bytes alive; [`lanes_svg`]
//! writes them, of graphs of any size. [`timeline_html`] and [`timeline_svg`] show runs of a step over time. Equal graphs give equal bytes.
//!
//! * [`order`]: the lines, few of them, whatever the graph;
//! * [`buckets`]: which collectives have one colour;
//! * `timeline_marks`: which spans share a box where there are too many;
//! * `text`: sizes, and names that fit and are escaped.

mod axis;
pub mod buckets;
mod dot;
mod lanes;
mod lanes_svg;
pub mod order;
mod svg;
mod text;
mod timeline;
mod timeline_marks;
mod timeline_svg;

pub use dot::dot;
pub use lanes::Lanes;
pub use lanes_svg::lanes_svg;
pub use svg::svg;
pub use timeline::{TimedLane, TimedRun, TimedSpan, timeline_html};
pub use timeline_svg::timeline_svg;

use bucketeer::ir::{Dependencies, Graph, NodeId, ProcessGroup};
use bucketeer::passes::survey::{Surveyed, survey};
use bucketeer_types::sizes::human;
use buckets::{Buckets, Fate};
use order::{Item, items};
use text::visible;

/// A graph's collectives, ready to be drawn.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// What is drawn, in words.
    title: String,
    boxes: Vec<Collective>,
    items: Vec<Item>,
    /// In words, for the legend.
    buckets: Vec<String>,
}

/// A collective as a box.
#[derive(Clone, Debug)]
struct Collective {
    name: String,
    /// Kind, reduction, bytes.
    what: String,
    group: String,
    /// All that is known, line by line.
    details: Vec<String>,
    /// Index of its bucket.
    bucket: Option<usize>,
    /// Its bucket in a word or two.
    place: String,
    /// Whether it is a merged collective that stands in the graph.
    merged: bool,
    depth: u32,
}

impl Drawing {
    /// The collectives of a graph that [`verify`](bucketeer::ir::verify()) accepts, with these buckets.
    #[must_use]
    pub fn of(graph: &Graph, buckets: &Buckets) -> Self {
        let dependencies = Dependencies::of(graph);
        let found = survey(graph, &dependencies);
        let size = format!("{}, {}", counted(found.len(), "collective"), counted(buckets.len(), "bucket"));
        Self {
            title: format!("{}: {size}", visible(&graph.name)),
            boxes: found.iter().map(|one| collective(graph, buckets, one)).collect(),
            items: items(graph, &dependencies),
            buckets: (0..buckets.len()).map(|nth| in_words(graph, buckets, nth)).collect(),
        }
    }

    /// How many collectives are drawn.
    #[must_use]
    pub fn collective_count(&self) -> usize {
        self.boxes.len()
    }
}

/// `1 bucket`, `2 buckets`.
fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn collective(graph: &Graph, buckets: &Buckets, one: &Surveyed) -> Collective {
    let kind = one.collective.kind;
    let op = kind.reduce_op().map_or(String::new(), |op| format!(" {op}"));
    let bytes = one.bytes.map_or("? bytes".to_owned(), human);
    let exact = one.bytes.map_or("size not known".to_owned(), |bytes| format!("{bytes} bytes"));
    let group = graph.group(one.collective.group);
    let mut details = vec![
        visible(graph.name_of(one.node)),
        format!("{}{op}, {exact}, depth {}", kind.name(), one.depth),
        ranks(group),
    ];
    details.extend(one.wait.map(|wait| format!("wait {}", visible(graph.name_of(wait)))));
    let region = graph.region(graph.node(one.node).region);
    if !region.label.is_empty() {
        details.push(format!("in region {}", visible(&region.label)));
    }
    let fate = buckets.of(one.node);
    details.push(match fate {
        Fate::Merged { bucket } => format!("merged, with {} members", buckets.members(*bucket)),
        Fate::Joins { bucket } => {
            let of = buckets.number(*bucket).map_or(String::new(), |number| format!(" of {}", number.of));
            format!("{}{of}, with {} members", title(buckets, *bucket), buckets.members(*bucket))
        }
        Fate::Alone(reason) => format!("alone: {}", visible(reason)),
    });
    Collective {
        name: visible(graph.name_of(one.node)),
        what: format!("{}{op}, {bytes}", kind.name()),
        group: format!("group {}", visible(&group.name)),
        details,
        bucket: fate.bucket(),
        place: fate.bucket().map_or("alone".to_owned(), |bucket| title(buckets, bucket)),
        merged: matches!(fate, Fate::Merged { .. }),
        depth: one.depth,
    }
}

/// A group, its size and the first of its members.
fn ranks(group: &ProcessGroup) -> String {
    const MOST: usize = 16;
    let size = group.size.map_or("size not known".to_owned(), |size| format!("{size} ranks"));
    let mut text = format!("group {}, {size}", visible(&group.name));
    if let Some(first) = group.members.first() {
        let list: Vec<String> = first.iter().take(MOST).map(|rank| rank.0.to_string()).collect();
        let more = if first.len() > MOST { ", .." } else { "" };
        text += &format!(" [{}{more}]", list.join(", "));
    }
    if group.members.len() > 1 {
        text += &format!(" and {} more like it", group.members.len() - 1);
    }
    text
}

/// What a bucket is called: as in the reports of `rewrite`, where each kind of collective has its own numbers.
fn title(buckets: &Buckets, bucket: usize) -> String {
    buckets.number(bucket).map_or("merged".to_owned(), |number| format!("bucket {}", number.nth))
}

/// A bucket for the legend.
fn in_words(graph: &Graph, buckets: &Buckets, nth: usize) -> String {
    let first: NodeId = buckets.first(nth);
    let collective = graph.collective(first).expect("buckets are of collectives");
    let bytes = buckets.bytes(nth).map_or("? bytes".to_owned(), human);
    format!(
        "{}: {}, group {}, {} members, {bytes}",
        title(buckets, nth),
        collective.kind.name(),
        visible(&graph.group(collective.group).name),
        buckets.members(nth)
    )
}

/// Fills of buckets, used in turn; light, for text stands on them.
const COLOURS: [&str; 12] = [
    "#9fc5e8", "#f9cb9c", "#b6d7a8", "#ea9999", "#b4a7d6", "#ffe599", "#a2c4c9", "#d5a6bd", "#c9daf8", "#d9c3a5",
    "#c6e2b5", "#f4b6c2",
];

/// The fill of a collective, by its bucket; white for one that is alone.
fn fill(bucket: Option<usize>) -> &'static str {
    bucket.map_or("#ffffff", |bucket| COLOURS[bucket % COLOURS.len()])
}

/// Most buckets that a legend lists.
const MOST_IN_LEGEND: usize = 24;

impl Drawing {
    fn legend(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        let alone = self.boxes.iter().filter(|one| one.bucket.is_none()).count();
        legend(|nth| self.buckets[nth].clone(), self.buckets.len(), alone)
    }
}

/// The first of so many buckets in words, with their fills, and what is left out of the legend.
fn legend(
    words: impl Fn(usize) -> String,
    buckets: usize,
    alone: usize,
) -> impl Iterator<Item = (&'static str, String)> {
    let listed = (0..buckets.min(MOST_IN_LEGEND)).map(move |nth| (fill(Some(nth)), words(nth)));
    let more = buckets.saturating_sub(MOST_IN_LEGEND);
    let more = (more > 0).then(|| (fill(None), format!("and {more} buckets more, in the same colours")));
    listed.chain(more).chain((alone > 0).then(|| (fill(None), format!("alone: {alone}"))))
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
