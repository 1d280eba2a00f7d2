//! What would make a planned step shorter: faster links, more memory.

use crate::units::{human, time};
use bucketeer::ir::Graph;
use bucketeer::passes::schedule::{Costs, Effort, PlanError, Planned, ScheduleOptions, Timeline, plan};
use serde::Serialize;

/// Most that links are thought to be faster, in hundredths.
const MOST_HUNDREDTHS: u32 = 1_600;

/// What would help.
#[derive(Debug, Default, Serialize)]
pub struct Helps {
    /// Faster links, by group, what helps most first.
    links: Vec<Link>,
    /// More memory, if a plan that was found at once without a cap is shorter.
    memory: Option<More>,
}

/// Faster links of a group. The plan is the same.
#[derive(Debug, Serialize)]
struct Link {
    group: String,
    /// The step with links twice as fast.
    twice_ns: u64,
    /// How fast links have to be, in hundredths, for half of what is exposed; null if 16 times as fast are not enough.
    half_hundredths: Option<u32>,
}

#[derive(Debug, Serialize)]
struct More {
    makespan_ns: u64,
    peak_bytes: u64,
}

impl Helps {
    /// Of a plan that `came` became, by the same costs and options.
    pub fn of(
        came: &Graph,
        graph: &Graph,
        costs: &Costs,
        planned: &Planned,
        options: &ScheduleOptions,
    ) -> Result<Self, PlanError> {
        let exposed_ns = planned.after.exposed_ns();
        let mut helps = Self::default();
        if exposed_ns == 0 {
            return Ok(helps);
        }
        let left = costs.of_what_is_left(graph);
        for group in graph.groups() {
            let run = |hundredths| Timeline::of(graph, &left.with_faster_links(&group.name, hundredths));
            let twice_ns = run(200)?.makespan_ns;
            if twice_ns >= planned.after.makespan_ns {
                continue;
            }
            let is_half = |hundredths| Ok::<_, PlanError>(run(hundredths)?.exposed_ns() <= exposed_ns / 2);
            let mut half_hundredths = None;
            if is_half(MOST_HUNDREDTHS)? {
                let (mut low, mut high) = (100, MOST_HUNDREDTHS);
                while low + 1 < high {
                    let middle = low.midpoint(high);
                    *(if is_half(middle)? { &mut high } else { &mut low }) = middle;
                }
                half_hundredths = Some(high);
            }
            helps.links.push(Link { group: group.name.to_string(), twice_ns, half_hundredths });
        }
        helps.links.sort_by_key(|link| link.twice_ns);
        if options.cap_bytes.is_some() {
            let mut at_once = *options;
            (at_once.cap_bytes, at_once.effort, at_once.bounds) = (None, Effort::Low, false);
            let more = plan(&mut came.clone(), costs, &at_once)?.after;
            if more.makespan_ns < planned.after.makespan_ns && more.peak_bytes > planned.after.peak_bytes {
                helps.memory = Some(More { makespan_ns: more.makespan_ns, peak_bytes: more.peak_bytes });
            }
        }
        Ok(helps)
    }

    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let link = |link: &Link| {
            let half = match link.half_hundredths {
                Some(hundredths) => format!("{:.2} times as fast", f64::from(hundredths) / 100.0),
                None => format!("more than {} times as fast, as starts take most of it", MOST_HUNDREDTHS / 100),
            };
            format!(
                "  what would help: links of group `{}` twice as fast, {}; half of what is exposed takes links {half}",
                link.group,
                time(link.twice_ns)
            )
        };
        let more = |more: &More| {
            format!(
                "  what would help: {} alive at once, {} by a plan that was found at once; --sweep says what memory is worth",
                human(more.peak_bytes),
                time(more.makespan_ns)
            )
        };
        self.links.iter().map(link).chain(self.memory.iter().map(more)).collect()
    }
}
