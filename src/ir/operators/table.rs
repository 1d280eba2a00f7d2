//! PyTorch's operators, from the table that `scripts/torch_operators.py` writes: a line for each overload, sorted by name.
//!
//! A line has four columns: `ns.base.overload`, arguments, results, flags; the script says how they are spelled. Lines are
//! found by binary search on the text and read when they are asked for.

use super::schema::{AliasSet, Flags, Parameter, Return, Signature};

/// The table, as written.
const TORCH: &str = include_str!("torch.tsv");

/// One overload's line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'t> {
    /// `aten.add_.Tensor`.
    pub name: &'t str,
    arguments: &'t str,
    results: &'t str,
    flags: &'t str,
}

impl<'t> Row<'t> {
    pub fn of(line: &'t str) -> Self {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or("");
        Self { name: next(), arguments: next(), results: next(), flags: next() }
    }

    /// Whether only TorchScript calls it: no graph does.
    pub fn is_script(&self) -> bool {
        self.flags.split(' ').any(|flag| flag == "script")
    }

    pub fn signature(&self) -> Signature {
        let flag = |name| self.flags.split(' ').any(|flag| flag == name);
        Signature {
            parameters: self.arguments.split(' ').filter(|word| !word.is_empty()).map(parameter).collect(),
            returns: self.results.split(' ').filter(|word| !word.is_empty()).map(result).collect(),
            flags: Flags {
                random: flag("random"),
                maybe: flag("maybe"),
                inplace_view: flag("inplace_view"),
                communicates: false,
            },
        }
    }
}

fn parameter(word: &str) -> Parameter {
    let (keyword_only, word) = match word.strip_prefix('*') {
        Some(word) => (true, word),
        None => (false, word),
    };
    let (name, mark) = word.split_once(':').map_or((word, None), |(name, mark)| (name, Some(mark)));
    Parameter { name: name.into(), keyword_only, tensors: mark.is_some(), alias: mark.and_then(alias_set) }
}

fn alias_set(mark: &str) -> Option<AliasSet> {
    let written = mark.starts_with('!');
    mark.strip_prefix(['!', '=']).map(|name| AliasSet { name: name.into(), written })
}

fn result(word: &str) -> Return {
    match word {
        "-" => Return::Fresh,
        "." => Return::Other,
        mark => alias_set(mark).map_or(Return::Fresh, Return::In),
    }
}

/// Where the first line begins that is not less than `name`.
fn lower_bound(name: &str) -> usize {
    let (mut low, mut high) = (0, TORCH.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let start = TORCH[..middle].rfind('\n').map_or(0, |at| at + 1);
        let line = &TORCH[start..];
        let end = start + line.find('\n').map_or(line.len(), |at| at + 1);
        if Row::of(&TORCH[start..end]).name < name {
            low = end;
        } else {
            high = start;
        }
    }
    low
}

/// The overload of a target, such as `aten.add.Tensor`.
pub(super) fn overload(target: &str) -> Option<Row<'static>> {
    let row = TORCH[lower_bound(target)..].lines().next().map(Row::of)?;
    (row.name == target).then_some(row)
}

/// All overloads of an operator, such as `aten` and `add`. Where any can be called from a graph, only those that can.
pub(super) fn overloads(namespace: &str, base: &str) -> Vec<Row<'static>> {
    let prefix = format!("{namespace}.{base}.");
    let lines = TORCH[lower_bound(&prefix)..].lines().take_while(|line| line.starts_with(&prefix));
    let mut rows: Vec<Row<'static>> = lines.map(Row::of).collect();
    if rows.iter().any(|row| !row.is_script()) {
        rows.retain(|row| !row.is_script());
    }
    rows
}

/// Every line.
pub(super) fn lines() -> impl Iterator<Item = &'static str> {
    TORCH.lines()
}

/// Every overload.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = Row<'static>> {
    TORCH.lines().map(Row::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sorted_and_each_is_found_by_its_name() {
        let mut last = "";
        let mut count = 0;
        for row in rows() {
            assert!(last < row.name, "{} stands after {last}", row.name);
            assert_eq!(overload(row.name).map(|found| found.name), Some(row.name));
            last = row.name;
            count += 1;
        }
        assert!(count > 4000, "{count}");
        assert!(overload("aten.brand_new.default").is_none() && overload("").is_none() && overload("zzz").is_none());
    }

    #[test]
    fn overloads_that_only_torchscript_calls_are_left_out_where_there_are_others() {
        let names: Vec<&str> = overloads("aten", "sort").iter().map(|row| row.name).collect();
        assert_eq!(names, ["aten.sort.default", "aten.sort.stable", "aten.sort.values", "aten.sort.values_stable"]);
        assert!(!overloads("aten", "append").is_empty());
        assert!(overloads("aten", "view").iter().all(|row| row.name.starts_with("aten.view.")));
    }
}
