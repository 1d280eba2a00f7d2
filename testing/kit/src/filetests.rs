//! Tests that are files: a graph, or one before and one after, in the native text, what is run on them, and what comes out.
//!
//! ```text
//! # check outputs-may-share     what is run: a line for each run, with its options
//! # Any other comment says what the case is for.
//! x = input f32[4]
//! output(neg(x))
//! ---                           below it, the graph after; may be missing
//! x = input f32[4]
//! output(relu(x))
//! === check outputs-may-share   below it, what that run says
//! different: ...
//! ```
//!
//! With `BUCKETEER_UPDATE_FILETESTS=1` expectations are written anew, to be read as a diff.

use bucketeer::ir::{Graph, Operators, text};
use bucketeer::passes::Pipeline;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A case.
#[derive(Debug)]
pub struct Case {
    /// The graphs, in order: one or two.
    pub graphs: Vec<Graph>,
    runs: Vec<Run>,
    /// The file up to its first expectation.
    source: String,
    expected: String,
}

/// One thing that a case asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    line: String,
}

impl Run {
    /// Whether an option is given.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options().any(|given| given == option)
    }

    /// The value of an option: `align` in `align=32`.
    #[must_use]
    pub fn value(&self, option: &str) -> Option<&str> {
        self.options().find_map(|given| given.strip_prefix(option)?.strip_prefix('='))
    }

    /// All values of an option that may be given several times.
    pub fn values<'a>(&'a self, option: &'a str) -> impl Iterator<Item = &'a str> {
        self.options().filter_map(move |given| given.strip_prefix(option)?.strip_prefix('='))
    }

    /// A number that an option gives.
    #[must_use]
    pub fn number(&self, option: &str) -> Option<u64> {
        let number = |value: &str| value.parse().unwrap_or_else(|_| panic!("`{}`: {option} is a number", self.line));
        self.value(option).map(number)
    }

    /// A graph as a pipeline leaves it, if the run names one: `passes=bucket-all-gather{cap=none}`.
    #[must_use]
    pub fn rewritten(&self, graph: &Graph) -> Option<Graph> {
        let pipeline: Pipeline = self.value("passes")?.parse().unwrap_or_else(|error| panic!("{error}"));
        let mut graph = graph.clone();
        pipeline.run(&mut graph).unwrap_or_else(|error| panic!("{error}"));
        Some(graph)
    }

    fn options(&self) -> impl Iterator<Item = &str> {
        self.line.split(' ').skip(1)
    }

    /// Panics where an option is not one of these; those that end in `=` take a value.
    fn check_options(&self, known: &[&str]) {
        for given in self.options() {
            let fits = |option: &&str| given == *option || option.ends_with('=') && given.starts_with(option);
            assert!(known.iter().any(fits), "`{given}` is not an option of `{}`: {known:?}", self.line);
        }
    }
}

impl Case {
    /// Reads a file whose runs begin with `command`. Lines `# declare SCHEMA` declare operators for all of its graphs.
    fn read(text: &str, command: &str) -> Self {
        let start = text.find("\n=== ").map_or(text.len(), |at| at + 1);
        let (source, expected) = text.split_at(start);
        let asks = |line: &str| {
            let line = line.strip_prefix("# ")?;
            (line.split(' ').next() == Some(command)).then(|| Run { line: line.to_owned() })
        };
        let runs: Vec<Run> = source.lines().map_while(asks).collect();
        assert!(!runs.is_empty(), "the first line is not `# {command}` with its options");
        let mut graphs: Vec<Graph> = source
            .split("\n---\n")
            .map(|graph| text::parse(graph).unwrap_or_else(|error| panic!("{error}\n{graph}")))
            .collect();
        let declared: Vec<&str> = source.lines().filter_map(|line| line.strip_prefix("# declare ")).collect();
        for graph in &mut graphs {
            graph.operators = Operators::parse(&declared.join("\n")).unwrap_or_else(|error| panic!("{error}"));
        }
        Self { graphs, runs, source: source.to_owned(), expected: expected.to_owned() }
    }
}

/// Runs all files of a folder of `tests/filetests`, which has so many, and holds what they say against what comes out.
///
/// The folder's name is the command that its files run, with options as listed; those that end in `=` take a value.
#[track_caller]
pub fn hold(folder: &str, count: usize, options: &[&str], run: impl Fn(&Case, &Run) -> String) {
    let folder_path = crate::root().join("tests/filetests").join(folder);
    let paths = crate::files::with_ending(&folder_path, ".bkt");
    let update = std::env::var_os("BUCKETEER_UPDATE_FILETESTS").is_some();
    let failures: Vec<String> = paths
        .iter()
        .filter_map(|path| {
            let checked = std::panic::AssertUnwindSafe(|| hold_file(path, folder, options, &run, update));
            match std::panic::catch_unwind(checked) {
                Ok(failure) => failure,
                Err(panic) => Some(format!("{}: {}", named(path), message(&*panic))),
            }
        })
        .collect();
    assert!(failures.is_empty(), "{} of {} files\n{}", failures.len(), paths.len(), failures.join("\n\n"));
    assert_eq!(paths.len(), count, "files of tests/filetests/{folder} were added or are missing");
}

/// What a panic says.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

fn named(path: &Path) -> String {
    path.strip_prefix(crate::root()).unwrap_or(path).display().to_string()
}

fn hold_file(
    path: &PathBuf,
    command: &str,
    options: &[&str],
    run: &impl Fn(&Case, &Run) -> String,
    update: bool,
) -> Option<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let case = Case::read(&text, command);
    let mut found = String::new();
    for asked in &case.runs {
        asked.check_options(options);
        write!(found, "=== {}\n{}\n", asked.line, run(&case, asked).trim_end()).expect("a string takes all");
    }
    if update {
        std::fs::write(path, case.source + &found).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return None;
    }
    (found != case.expected).then(|| format!("{}\n{}", named(path), difference(&case.expected, &found)))
}

/// Two texts, line by line: `-` before what is only in the first, `+` before what is only in the second.
fn difference(from: &str, to: &str) -> String {
    let (from, to): (Vec<&str>, Vec<&str>) = (from.lines().collect(), to.lines().collect());
    // By place in both: how many lines the rest of the two have in common.
    let mut common = vec![vec![0_usize; to.len() + 1]; from.len() + 1];
    for a in (0..from.len()).rev() {
        for b in (0..to.len()).rev() {
            common[a][b] = match from[a] == to[b] {
                true => common[a + 1][b + 1] + 1,
                false => common[a + 1][b].max(common[a][b + 1]),
            };
        }
    }
    let (mut a, mut b, mut lines) = (0, 0, Vec::new());
    while a < from.len() || b < to.len() {
        let (left, right) = (from.get(a), to.get(b));
        match (left, right) {
            (Some(left), Some(right)) if left == right => {
                lines.push(format!("  {left}"));
                (a, b) = (a + 1, b + 1);
            }
            (Some(left), _) if b == to.len() || common[a + 1][b] >= common[a][b + 1] => {
                lines.push(format!("- {left}"));
                a += 1;
            }
            (_, right) => {
                lines.push(format!("+ {}", right.expect("one of the two goes on")));
                b += 1;
            }
        }
    }
    lines.join("\n")
}
