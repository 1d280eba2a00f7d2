//! A random graph, a random pipeline, random damage: the checker and the evaluator must agree.

use super::choices::Choices;
use super::damage::damage;
use super::grow::{GraphOptions, GrowthStep, STEP_KINDS, grow};
use super::pipelines::pipeline_text;
use bucketeer::check::{Options, Verdict, prove_with};
use bucketeer::ir::text::print;
use bucketeer::ir::{Graph, VerifyError, VerifyErrors, verify};
use bucketeer::passes::bucketing::Unpack;
use bucketeer::passes::merge::MergeError;
use bucketeer::passes::{Pass, Pipeline, PipelineError};
use bucketeer_eval::{Comparison, Difference, EvalError, EvalOptions, compare};
use std::fmt;

/// What became of the inputs of [`prove_and_run`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProofCounts {
    /// Graphs that went through a pipeline.
    pub graphs: u64,
    /// Those that the pipeline changed.
    pub rewritten: u64,
    /// Rewrites that the checker proved.
    pub proven: u64,
    /// Rewrites of graphs with regions that the checker could not decide.
    pub undecided: u64,
    /// Rewrites that the evaluator ran, once for each setting.
    pub runs: u64,
    /// Damaged rewrites.
    pub damaged: u64,
    /// Damage that made no difference, by the checker; the evaluator found none either.
    pub harmless: u64,
    /// Damage that made no difference, by the checker, and that the evaluator could not run to the end.
    pub not_run: u64,
    /// Damage that the checker refused and the evaluator saw.
    pub refused: u64,
    /// Damage that the checker refused, and in which the evaluator saw no other value: orders, waits, launches.
    pub refused_alone: u64,
}

impl fmt::Display for ProofCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} graphs, {} rewritten; {} proven, {} undecided, {} runs; {} damaged: {} harmless, {} not run, \
             {} refused by both, {} by the checker alone",
            self.graphs,
            self.rewritten,
            self.proven,
            self.undecided,
            self.runs,
            self.damaged,
            self.harmless,
            self.not_run,
            self.refused,
            self.refused_alone
        )
    }
}

/// Bytes of one step of the graph; they are the last ones of the input.
pub const STEP_BYTES: usize = 7;

/// Grows a graph, rewrites it, proves and runs the rewrite, then damages it and has both look again. The bytes choose
/// everything; the checker must prove each rewrite of a graph without regions, and the evaluator must find no
/// difference wherever the checker finds none.
///
/// # Panics
/// If not.
pub fn prove_and_run(bytes: &[u8]) -> bool {
    prove_and_count(bytes, &mut ProofCounts::default())
}

/// As [`prove_and_run`], and counts.
///
/// # Panics
/// As [`prove_and_run`].
pub fn prove_and_count(bytes: &[u8], counts: &mut ProofCounts) -> bool {
    let mut choices = Choices::new(bytes);
    // Half of the graphs have each of these.
    let flags = choices.byte();
    let has = |bit: u8| flags >> bit & 1 == 1;
    let options = GraphOptions {
        regions: has(0),
        writes: has(1),
        effects: has(2),
        all_kinds: has(3),
        symbols: has(4),
        ..GraphOptions::default()
    };
    let settings = settings(&mut choices);
    let pipeline = pipeline_text(&mut choices);
    let damages: Vec<Vec<u8>> = (0..choices.below(6)).map(|_| (0..12).map(|_| choices.byte()).collect()).collect();
    let graph = grow(&steps(&mut choices), options);
    let case = Case::new(graph, &pipeline, settings);
    let Some(after) = case.rewritten() else { return false };
    case.check(&after, counts);
    for bytes in damages {
        case.check_damaged(&after, &mut Choices::new(&bytes), counts);
    }
    true
}

fn steps(choices: &mut Choices<'_>) -> Vec<GrowthStep> {
    let mut steps = Vec::new();
    while !choices.is_empty() && steps.len() < 100 {
        steps.push((choices.byte() % STEP_KINDS, choices.word(), choices.word(), choices.word()));
    }
    steps
}

/// What the evaluator is run with: the symbol of random graphs as hinted, and another value.
fn settings(choices: &mut Choices<'_>) -> Vec<EvalOptions> {
    let seed = u64::from(choices.word());
    let s = [0, 1, 3, 5][choices.below(4)];
    vec![
        EvalOptions { seed, ..EvalOptions::default() },
        EvalOptions { seed: seed + 1, symbols: [("s".to_owned(), s)].into_iter().collect(), ..EvalOptions::default() },
    ]
}

/// A graph, a pipeline, and what to run both with.
struct Case {
    before: Graph,
    pipeline: Pipeline,
    options: Options,
    settings: Vec<EvalOptions>,
}

impl Case {
    fn new(before: Graph, pipeline: &str, settings: Vec<EvalOptions>) -> Self {
        let pipeline: Pipeline = pipeline.parse().unwrap_or_else(|error| panic!("{pipeline}: {error}"));
        let views = |pass: &Pass| matches!(pass, Pass::Bucket(options) if options.unpack == Unpack::Views);
        let outputs_may_share = pipeline.passes.iter().any(views);
        Self { before, pipeline, options: Options { outputs_may_share, ..Options::default() }, settings }
    }

    /// Nothing where sizes pass 64 bits.
    fn rewritten(&self) -> Option<Graph> {
        let mut after = self.before.clone();
        match self.pipeline.run(&mut after) {
            Ok(_) => Some(after),
            Err(PipelineError::Merge { error: MergeError::Size { .. }, .. }) => None,
            Err(error) => panic!("{error}\n{}\n{}", self.pipeline, print(&self.before)),
        }
    }

    fn has_regions(&self) -> bool {
        self.before.regions().len() > 1
    }

    fn say(&self, after: &Graph) -> String {
        format!("{}\nbefore:\n{}\nafter:\n{}", self.pipeline, print(&self.before), print(after))
    }

    /// A rewrite is right.
    fn check(&self, after: &Graph, counts: &mut ProofCounts) {
        counts.graphs += 1;
        counts.rewritten += u64::from(*after != self.before);
        match prove_with(&self.before, after, self.options) {
            Verdict::Equal(_) => counts.proven += 1,
            Verdict::CannotDecide(_) if self.has_regions() => counts.undecided += 1,
            verdict => panic!("a rewrite is not proven: {verdict}\n{}", self.say(after)),
        }
        for settings in &self.settings {
            match self.compare(after, settings) {
                Ok(differences) if differences.is_empty() => counts.runs += 1,
                // Loops run twice in place: what they compute may leave what is defined.
                Err(EvalError::Side { error, .. }) if self.has_regions() && is_undefined(&error) => {}
                Err(error) => panic!("a rewrite cannot be run: {error}\n{}", self.say(after)),
                Ok(differences) => {
                    panic!("a rewrite is proven and differs: {}\n{}", list(&differences), self.say(after))
                }
            }
        }
    }

    fn check_damaged(&self, after: &Graph, choices: &mut Choices<'_>, counts: &mut ProofCounts) {
        let mut damaged = after.clone();
        let Some(what) = damage(&mut damaged, choices) else { return };
        if !can_be_checked(&damaged) {
            return;
        }
        counts.damaged += 1;
        let say = |found: &str| format!("{what}: {found}\n{}\nundamaged:\n{}", self.say(&damaged), print(after));
        let equal = match prove_with(&self.before, &damaged, self.options) {
            // For one rank alone.
            Verdict::Equal(proof) => proof.ranks.is_empty(),
            Verdict::Different(_) | Verdict::CannotDecide(_) => false,
        };
        let settings = if equal { &self.settings[..] } else { &self.settings[..1] };
        let mut differs = false;
        for settings in settings {
            match self.compare(&damaged, settings) {
                Ok(differences) if differences.is_empty() => {}
                // Strides are not part of a value.
                Ok(differences) if equal && differences.iter().all(says_strides) => differs = true,
                Ok(differences) if equal => panic!("{}", say(&format!("proven, and differs: {}", list(&differences)))),
                Err(error) if equal && !is_undefined(&error) => {
                    panic!("{}", say(&format!("proven, and not run: {error}")))
                }
                Ok(_) | Err(_) => differs = true,
            }
        }
        match (equal, differs) {
            (true, false) => counts.harmless += 1,
            (true, true) => counts.not_run += 1,
            (false, true) => counts.refused += 1,
            (false, false) => counts.refused_alone += 1,
        }
    }

    /// What the evaluator finds, without what the options allow.
    fn compare(&self, after: &Graph, settings: &EvalOptions) -> Result<Vec<Difference>, EvalError> {
        let Comparison { mut differences, .. } = compare(&self.before, after, settings)?;
        if self.options.outputs_may_share {
            differences.retain(|difference| !matches!(difference, Difference::Sharing { .. }));
        }
        Ok(differences)
    }
}

fn is_undefined(error: &EvalError) -> bool {
    match error {
        EvalError::Undefined { .. } => true,
        EvalError::Side { error, .. } => is_undefined(error),
        _ => false,
    }
}

/// Whether a difference is that a tensor's strides are not the stated ones.
fn says_strides(difference: &Difference) -> bool {
    matches!(difference, Difference::Faulty(EvalError::Type { only_strides: true, .. }))
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Graphs with any other fault are refused before they come to the checker.
fn can_be_checked(graph: &Graph) -> bool {
    match verify(graph) {
        Ok(()) => true,
        Err(VerifyErrors(errors)) => errors.iter().all(|error| matches!(error, VerifyError::ReadPending { .. })),
    }
}
