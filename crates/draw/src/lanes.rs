//! A graph as lanes over program order: for graphs with more collectives than boxes fit into a picture.
//!
//! One lane for each group, with a bar for each collective from its launch to its last wait. Bars that overlap lie in rows
//! of their own. What falls into one column of the picture is one mark, and columns grow until the marks are few, so that
//! the size of a picture has a bound that no graph exceeds. Cost: linear in the graph.

use super::buckets::Buckets;
use super::text::{cut, visible};
use super::{collective, counted, fill, in_words, legend, ranks};
use bucketeer::ir::{Dependencies, Graph, GroupId};
use bucketeer::passes::liveness::{LiveBytes, live_bytes};
use bucketeer::passes::survey::{Surveyed, survey};
use bucketeer_types::sizes::human;

/// Pixels that the whole program takes.
pub(super) const WIDTH: u64 = 1200;

/// Most rows of a lane; what else is in flight at the time is counted.
const MOST_ROWS: usize = 12;

/// Most lanes of a picture.
pub(super) const MOST_LANES: usize = 24;

/// Most marks of a picture.
pub(super) const MOST_MARKS: usize = 2500;

/// Columns of one line that is told about a mark.
pub(super) const COLUMNS: usize = 120;

/// A graph's collectives and memory by program order, ready to be drawn.
#[derive(Clone, Debug)]
pub struct Lanes {
    pub(super) title: String,
    /// Fills and what they stand for.
    pub(super) legend: Vec<(&'static str, String)>,
    /// How many nodes the program has.
    pub(super) nodes: usize,
    pub(super) lanes: Vec<Lane>,
    /// In words, what has no lane.
    pub(super) left_out: Option<String>,
    pub(super) memory: BytesAlive,
}

/// The collectives of a group.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub name: String,
    /// How many ranks, collectives and bytes.
    pub facts: [String; 3],
    /// All that is known of the group.
    pub details: String,
    pub rows: usize,
    pub marks: Vec<Mark>,
    /// Collectives that no row has room for.
    pub more: usize,
}

/// A collective, or several that are too close to be told apart.
#[derive(Clone, Default, Debug)]
pub(super) struct Mark {
    pub row: usize,
    /// Places in the program: the first, and one behind the last.
    pub start: usize,
    pub end: usize,
    pub fill: &'static str,
    /// The number of its bucket, if it has one.
    pub number: String,
    /// What it is called.
    pub name: String,
    /// All that is known, line by line.
    pub details: Vec<String>,
    /// Whether it is a merged collective that stands in the graph.
    pub merged: bool,
}

/// The bytes alive.
#[derive(Clone, Debug)]
pub(super) struct BytesAlive {
    /// By column, each of as many nodes: the most bytes alive there.
    pub columns: Vec<u64>,
    pub caption: String,
    /// The column of the peak, and what is known of it.
    pub peak: Option<(usize, String)>,
}

impl Lanes {
    /// The collectives of a graph that [`verify`](bucketeer::ir::verify()) accepts, with these buckets, and its memory.
    #[must_use]
    pub fn of(graph: &Graph, buckets: &Buckets) -> Self {
        let dependencies = Dependencies::of(graph);
        let found = survey(graph, &dependencies);
        let nodes = graph.order().len();
        let mut placed = place(graph, &found);
        let with_lane = placed.len().min(MOST_LANES);
        let left_out = placed.split_off(with_lane);
        let mut column = 1;
        let runs = loop {
            let runs: Vec<Vec<(usize, &[Bar])>> = placed.iter().map(|one| one.marks(nodes, column)).collect();
            // A column of the whole width leaves a mark a row.
            if column >= WIDTH || runs.iter().map(Vec::len).sum::<usize>() <= MOST_MARKS {
                break runs;
            }
            column *= 2;
        };
        let lanes = placed.iter().zip(&runs).map(|(one, runs)| lane(graph, buckets, &found, one, runs)).collect();
        let alone = found.iter().filter(|one| buckets.of(one.node).bucket().is_none()).count();
        let size =
            [counted(found.len(), "collective"), counted(buckets.len(), "bucket"), counted(nodes, "node")].join(", ");
        let words = |nth| cut(&in_words(graph, buckets, nth), COLUMNS);
        let without_lane = left_out.iter().map(|one| one.count()).sum::<usize>();
        let without_lane = (!left_out.is_empty()).then(|| {
            format!("and {} more, with {}", counted(left_out.len(), "group"), counted(without_lane, "collective"))
        });
        Self {
            title: format!("{}: {size}", cut(&visible(&graph.name), 60)),
            legend: legend(words, buckets.len(), alone).collect(),
            nodes,
            lanes,
            left_out: without_lane,
            memory: BytesAlive::of(graph, &live_bytes(graph)),
        }
    }
}

/// A collective in program order.
#[derive(Clone, Copy, Debug)]
struct Bar {
    /// Index among the collectives of the graph.
    nth: usize,
    /// Places in the program: of the launch, and one behind the last wait.
    start: usize,
    end: usize,
}

/// The collectives of a group, in rows.
struct Placed {
    group: GroupId,
    rows: Vec<Vec<Bar>>,
    /// Those that no row has room for, by index.
    more: Vec<usize>,
}

impl Placed {
    /// How many collectives.
    fn count(&self) -> usize {
        self.rows.iter().map(Vec::len).sum::<usize>() + self.more.len()
    }

    /// The bars that one mark stands for, with their row: one alone if it reaches over the end of a column of so many pixels, else
    /// with its neighbours in that column.
    fn marks(&self, nodes: usize, column: u64) -> Vec<(usize, &[Bar])> {
        let column_of = |at: usize| at as u64 * WIDTH / nodes.max(1) as u64 / column;
        let close = |a: &Bar, b: &Bar| column_of(a.start) == column_of(b.end - 1);
        let rows = self.rows.iter().enumerate();
        rows.flat_map(|(row, bars)| bars.chunk_by(close).map(move |run| (row, run))).collect()
    }
}

/// The groups that have collectives, as the graph lists them, with their collectives in the first row that is free.
fn place(graph: &Graph, found: &[Surveyed]) -> Vec<Placed> {
    let mut at = vec![0; graph.arena_len()];
    graph.order().iter().enumerate().for_each(|(place, id)| at[id.index()] = place);
    let mut placed: Vec<Option<Placed>> = graph.groups().iter().map(|_| None).collect();
    for (nth, one) in found.iter().enumerate() {
        let group = one.collective.group;
        let here = placed[group.index()].get_or_insert_with(|| Placed { group, rows: Vec::new(), more: Vec::new() });
        let start = at[one.node.index()];
        let bar = Bar { nth, start, end: one.last_wait.map_or(start, |wait| at[wait.index()]) + 1 };
        let is_free = |row: &Vec<Bar>| row.last().is_none_or(|last| last.end <= start);
        if let Some(row) = here.rows.iter().position(is_free) {
            here.rows[row].push(bar);
        } else if here.rows.len() < MOST_ROWS {
            here.rows.push(vec![bar]);
        } else {
            here.more.push(nth);
        }
    }
    placed.into_iter().flatten().collect()
}

fn lane(graph: &Graph, buckets: &Buckets, found: &[Surveyed], placed: &Placed, runs: &[(usize, &[Bar])]) -> Lane {
    let group = graph.group(placed.group);
    let all = placed.rows.iter().flatten().map(|bar| bar.nth).chain(placed.more.iter().copied());
    let (bytes, unknown) = sum(all.map(|nth| &found[nth]));
    Lane {
        name: visible(&group.name),
        facts: [
            group.size.map_or("? ranks".to_owned(), |size| counted(size as usize, "rank")),
            counted(placed.count(), "collective"),
            human(bytes) + if unknown > 0 { " and more" } else { "" },
        ],
        details: cut(&ranks(group), COLUMNS),
        rows: placed.rows.len(),
        marks: runs.iter().map(|&(row, run)| mark(graph, buckets, found, row, run)).collect(),
        more: placed.more.len(),
    }
}

/// Bytes of collectives, and of how many they are not known.
fn sum<'a>(collectives: impl Iterator<Item = &'a Surveyed>) -> (u64, usize) {
    collectives.fold((0, 0), |(bytes, unknown), one| match one.bytes {
        Some(more) => (bytes.saturating_add(more), unknown),
        None => (bytes, unknown + 1),
    })
}

fn mark(graph: &Graph, buckets: &Buckets, found: &[Surveyed], row: usize, bars: &[Bar]) -> Mark {
    let (first, last) = (bars[0], bars[bars.len() - 1]);
    let one = &found[first.nth];
    let bucket = buckets.of(one.node).bucket();
    let number = |bucket: usize| buckets.number(bucket).map_or("merged".to_owned(), |number| number.nth.to_string());
    if let [_] = bars {
        let shown = collective(graph, buckets, one);
        let place = match first.end - 1 {
            end if end == first.start => format!("node {end}; no wait"),
            end => format!("nodes {} to {end}, its last wait", first.start),
        };
        let details = shown.details.iter().chain([&place]).map(|line| cut(line, COLUMNS)).collect();
        return Mark {
            row,
            start: first.start,
            end: first.end,
            fill: fill(bucket),
            number: bucket.map_or_else(String::new, number),
            name: shown.name,
            details,
            merged: shown.merged,
        };
    }
    let of = |bar: &Bar| &found[bar.nth];
    let (bytes, unknown) = sum(bars.iter().map(of));
    let is_one_bucket = bars.iter().all(|bar| buckets.of(of(bar).node).bucket() == bucket);
    let unknown = if unknown > 0 { format!(" and {unknown} of unknown size") } else { String::new() };
    let name = counted(bars.len(), "collective");
    let ends = [&first, &last].map(|bar| visible(graph.name_of(of(bar).node)));
    let details = [
        format!("{name}, {bytes} bytes{unknown}"),
        ranks(graph.group(one.collective.group)),
        format!("{} to {}", ends[0], ends[1]),
        format!("nodes {} to {}", first.start, last.end - 1),
        match bucket {
            Some(bucket) if is_one_bucket => super::title(buckets, bucket),
            None if is_one_bucket => "each alone".to_owned(),
            _ => "of several buckets".to_owned(),
        },
    ];
    Mark {
        row,
        start: first.start,
        end: last.end,
        fill: if is_one_bucket { fill(bucket) } else { SEVERAL },
        number: bucket.filter(|_| is_one_bucket).map_or_else(String::new, number),
        name,
        details: details.iter().map(|line| cut(line, COLUMNS)).collect(),
        merged: false,
    }
}

/// The fill of a mark for collectives of several buckets.
const SEVERAL: &str = "#bbbbbb";

impl BytesAlive {
    fn of(graph: &Graph, live: &LiveBytes) -> Self {
        let nodes = live.bytes.len();
        let mut columns = vec![0; nodes.min(WIDTH as usize)];
        for (at, &bytes) in live.bytes.iter().enumerate() {
            let column = &mut columns[at * nodes.min(WIDTH as usize) / nodes];
            *column = bytes.max(*column);
        }
        let most = live.bytes.iter().copied().max().unwrap_or(0);
        let at = live.bytes.iter().position(|&bytes| bytes == most && bytes > 0);
        let at = at.map(|at| (at, cut(&visible(graph.name_of(graph.order()[at])), 60)));
        let place = at.as_ref().map_or_else(String::new, |(at, name)| format!(" at node {at}, {name}"));
        let unknown = match live.unknown {
            0 => String::new(),
            unknown => format!("; {} of unknown size not counted", counted(unknown, "value")),
        };
        let words = format!("{} bytes{place}", most);
        Self {
            caption: format!("live bytes: peak {}{place}; inputs not counted{unknown}", human(most)),
            peak: at.map(|(at, _)| (at * columns.len() / nodes, words)),
            columns,
        }
    }
}
