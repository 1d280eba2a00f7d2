//! The last calls of a rank, kept in case one of them fails.

use super::verdict::GroupFailure;
use crate::signature::CallSignature;
use bucketeer_types::GlobalRank;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Most calls that are kept.
pub const MOST_ENTRIES: usize = 256;

/// Most calls of one coalescing block that are kept.
const MOST_CALLS: usize = 64;

/// Most failures that are kept.
const MOST_FAILURES: usize = 16;

/// How far a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    Launched,
    Done,
    Failed,
}

/// One launch.
#[derive(Clone, Debug)]
pub struct Entry {
    pub group: Arc<str>,
    /// Counted on the group; for sends and receives, between the two ranks.
    pub seq: u64,
    /// Group ranks of sender and receiver, for these.
    pub pair: Option<(u32, u32)>,
    /// One, or those of a coalescing block.
    pub calls: Vec<CallSignature>,
    /// How many there were.
    pub of: usize,
    launched_us: u64,
    ended_us: Option<u64>,
    progress: Progress,
}

/// The ring of them.
pub struct FlightRecord {
    rank: GlobalRank,
    start: Instant,
    /// The number of the oldest entry.
    first: u64,
    entries: VecDeque<Entry>,
    failures: Vec<serde_json::Value>,
    /// The groups that they are of.
    failed: HashSet<Arc<str>>,
}

impl FlightRecord {
    pub fn new(rank: GlobalRank) -> Self {
        let entries = VecDeque::with_capacity(MOST_ENTRIES);
        Self { rank, start: Instant::now(), first: 0, entries, failures: Vec::new(), failed: HashSet::new() }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Notes a launch; the number is for [`end`](Self::end).
    pub fn launched(&mut self, group: Arc<str>, seq: u64, pair: Option<(u32, u32)>, calls: &[CallSignature]) -> u64 {
        if self.entries.len() == MOST_ENTRIES {
            self.entries.pop_front();
            self.first += 1;
        }
        self.entries.push_back(Entry {
            group,
            seq,
            pair,
            of: calls.len(),
            calls: calls[..calls.len().min(MOST_CALLS)].to_vec(),
            launched_us: self.now_us(),
            ended_us: None,
            progress: Progress::Launched,
        });
        self.first + self.entries.len() as u64 - 1
    }

    /// Notes the end of a launch, if it is still kept.
    pub fn end(&mut self, number: u64, well: bool) {
        let now = self.now_us();
        let entry = number.checked_sub(self.first).and_then(|at| self.entries.get_mut(at as usize));
        if let Some(entry) = entry {
            entry.ended_us = Some(now);
            entry.progress = if well { Progress::Done } else { Progress::Failed };
        }
    }

    /// Those of a group, oldest first.
    pub fn of_group<'a>(&'a self, group: &'a str) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| &*entry.group == group)
    }

    /// Notes the failure of a group: of many the first, which the others may follow from, and the last. Returns whether it was
    /// not noted before.
    pub fn fail(&mut self, group: Arc<str>, verdict: &GroupFailure, reports: &serde_json::Value) -> bool {
        if self.failed.contains(&group) {
            return false;
        }
        let culprits: Vec<u32> = verdict.culprits().iter().map(|rank| rank.0).collect();
        if self.failures.len() == MOST_FAILURES {
            self.failures.remove(1);
        }
        self.failures.push(json!({
            "failed_group": &*group,
            "why": verdict.describe(&group).to_string(),
            "culprits": culprits,
            "verdict": verdict,
            "reports": reports,
            "failed_us": self.now_us(),
        }));
        self.failed.insert(group)
    }

    /// What is known of the failures, as JSON: the first of them, and those that came later.
    fn json(&self) -> String {
        let entry = |entry: &Entry| {
            json!({
                "group": &*entry.group,
                "seq": entry.seq,
                "pair": entry.pair,
                "calls": entry.calls,
                "calls_in_block": entry.of,
                "launched_us": entry.launched_us,
                "ended_us": entry.ended_us,
                "state": entry.progress,
            })
        };
        let mut record = self.failures.first().cloned().unwrap_or_else(|| json!({}));
        record["format"] = json!("bucketeer flight record 1");
        record["rank"] = json!(self.rank.0);
        record["later_failures"] = self.failures.iter().skip(1).cloned().collect();
        record["now_us"] = json!(self.now_us());
        record["calls"] = self.entries.iter().map(entry).collect();
        // A value of strings and numbers alone.
        serde_json::to_string_pretty(&record).unwrap_or_default() + "\n"
    }

    /// Writes it to `folder`, beside the place first, and returns the path.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("flight-rank{}.json", self.rank.0));
        let beside = folder.join(format!(".flight-rank{}.json.{}", self.rank.0, std::process::id()));
        std::fs::write(&beside, self.json())?;
        std::fs::rename(&beside, &path)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Call;
    use bucketeer_types::DType;

    #[test]
    fn the_oldest_calls_give_way_and_late_ends_of_them_are_no_matter() {
        let mut record = FlightRecord::new(GlobalRank(1));
        let outline = [CallSignature::of(&Call::barrier())];
        let first = record.launched("g".into(), 0, None, &outline);
        let numbers: Vec<u64> = (1..=256).map(|seq| record.launched("g".into(), seq, Some((0, 1)), &outline)).collect();
        record.end(first, true);
        record.end(numbers[0], true);
        record.end(numbers[1], false);
        record.end(9999, true);
        let kept: Vec<_> = record.of_group("g").map(|entry| (entry.seq, entry.progress)).collect();
        assert_eq!(kept.len(), MOST_ENTRIES);
        assert_eq!(kept[..3], [(1, Progress::Done), (2, Progress::Failed), (3, Progress::Launched)]);
        assert_eq!(record.of_group("h").count(), 0);
    }

    #[test]
    fn what_is_written_says_who_is_at_fault() {
        let mut record = FlightRecord::new(GlobalRank(1));
        let call = CallSignature::of(&Call::send(
            crate::Arena::new(8).unwrap().buffer(0, 8).unwrap(),
            DType::F32,
            bucketeer_types::GroupRank(0),
        ));
        record.launched("g".into(), 7, Some((1, 0)), &[call]);
        let verdict = GroupFailure::Remote { rank: GlobalRank(0), fate: crate::Fate::Lost, after: None };
        assert!(record.fail("g".into(), &verdict, &json!({})));
        assert!(!record.fail("g".into(), &GroupFailure::Aborted { by: GlobalRank(1) }, &json!({})), "it has failed");
        let value: serde_json::Value = serde_json::from_str(&record.json()).unwrap();
        assert_eq!(value["culprits"], json!([0]));
        assert_eq!(value["why"], "group g, watchdog: rank 0 went without a word");
        assert_eq!(value["calls"][0]["calls"][0]["op"], "send");
        assert_eq!(value["calls"][0]["state"], "launched");
        assert_eq!(value["later_failures"], json!([]));
    }

    #[test]
    fn the_first_failure_stays_at_the_top_and_the_last_are_kept() {
        let mut record = FlightRecord::new(GlobalRank(1));
        for by in 0..40 {
            record.fail(format!("g{by}").into(), &GroupFailure::Aborted { by: GlobalRank(by) }, &json!({}));
        }
        let value: serde_json::Value = serde_json::from_str(&record.json()).unwrap();
        assert_eq!((&value["failed_group"], &value["culprits"]), (&json!("g0"), &json!([0])));
        let later = value["later_failures"].as_array().unwrap();
        assert_eq!((later.len(), &later[14]["failed_group"]), (MOST_FAILURES - 1, &json!("g39")));
    }
}
