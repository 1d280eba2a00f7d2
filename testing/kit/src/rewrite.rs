//! Runs a pipeline on a text and holds the result to what must be true of every rewrite.

use bucketeer::check::{Options, Verdict, prove_with};
use bucketeer::ir::operators::OperatorId;
use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{Dependencies, GlobalRank, Graph, NodeId, Op, Operators, Strength, Variant, verify};
use bucketeer::passes::bucketing::{BucketPlan, Decision, Reason, Remark, Unpack};
use bucketeer::passes::select::Policy;
use bucketeer::passes::{Pass, PassReport, Pipeline};
use bucketeer_eval::{Difference, EvalOptions, Output, RankOutputs, compare};
use bucketeer_formats::fx::FxText;
use std::collections::{HashMap, HashSet};

/// What every case is rewritten with, where it asks for nothing else.
pub const ALL: &str = "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},\
                       bucket-all-gather{cap=none},bucket-broadcast{cap=none},bucket-all-to-all{cap=none}";

/// A graph before and after.
pub struct Rewritten {
    /// As it was read.
    pub before: Graph,
    /// As the pipeline left it.
    pub graph: Graph,
    /// Of each pass.
    pub reports: Vec<PassReport>,
    /// What each rank showed before, for each of the options.
    pub runs: Vec<Vec<RankOutputs>>,
}

/// The operators that sketches make up compute, and do nothing else.
const MADE_UP: &str = "layer(Tensor x) -> Tensor\nf(Tensor x) -> Tensor\nmatmul_like(Tensor x) -> Tensor";

/// A graph of native text, with the operators that sketches make up.
pub fn read(text: &str) -> Graph {
    let mut graph = parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"));
    graph.operators = Operators::parse(MADE_UP).unwrap_or_else(|error| panic!("{error}"));
    graph
}

/// The first graph of FX text.
pub fn read_fx(text: &str) -> Graph {
    let fx = FxText::parse(text.as_bytes().to_vec()).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"));
    fx.graphs()[0].clone()
}

/// A sketch of the case collection.
pub fn sketch(id: &str) -> String {
    let path = crate::root().join(format!("tests/sketches/{id}.txt"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Options with these values of symbols.
pub fn with_symbols<const N: usize>(symbols: [(&str, i64); N]) -> EvalOptions {
    EvalOptions { symbols: symbols.map(|(name, value)| (name.to_owned(), value)).into(), ..EvalOptions::default() }
}

/// What each rank shows that a graph's groups name, in use or not.
pub fn evaluate(graph: &Graph, options: &EvalOptions) -> Vec<RankOutputs> {
    let (graph, ranks) = with_members(graph);
    let options = EvalOptions { ranks: Some(ranks), ..options.clone() };
    bucketeer_eval::evaluate(&graph, &options).unwrap_or_else(|error| panic!("{error}\nin:\n{}", print(&graph)))
}

/// A graph with the members of all its groups, and how many ranks they are. What it does not say is made up: blocks of a
/// group's size, or of two.
fn with_members(graph: &Graph) -> (Graph, u32) {
    let size = |size: Option<u32>| size.unwrap_or(2);
    let listed = graph.groups().iter().flat_map(|group| group.members.iter().flatten());
    let most = listed.map(|rank| rank.0 + 1).max().unwrap_or(1);
    let ranks = graph.groups().iter().fold(most, |ranks, group| ranks.next_multiple_of(size(group.size)));
    let mut graph = graph.clone();
    let groups: Vec<_> = graph.order().iter().filter_map(|&id| graph.collective(id)).map(|c| c.group).collect();
    for id in groups {
        let group = graph.group_mut(id);
        let size = *group.size.get_or_insert(2);
        if group.members.is_empty() {
            let block = |nth| (nth * size..(nth + 1) * size).map(GlobalRank).collect();
            group.members = (0..ranks / size).map(block).collect();
        }
    }
    (graph, ranks)
}

/// Whether a result left without a wait, or the parts of one, in order.
fn pending(output: &Output) -> Vec<bool> {
    match output {
        Output::Tensor(tensor) => vec![tensor.pending],
        Output::Tuple(parts) => parts.iter().flat_map(pending).collect(),
        Output::Number(_) | Output::Opaque(_) => Vec::new(),
    }
}

/// Rewrites, runs both on every rank, and checks what holds for every rewrite.
pub fn rewrite(text: &str, pipeline: &str) -> Rewritten {
    rewrite_graph(read(text), pipeline, &[EvalOptions::default()])
}

/// The same, without running: for graphs too large to compute.
pub fn rewrite_shapes(text: &str, pipeline: &str) -> Rewritten {
    rewrite_graph(read(text), pipeline, &[])
}

/// Rewrites a graph, runs both with each of the options, and checks what holds for every rewrite.
pub fn rewrite_graph(before: Graph, pipeline: &str, options: &[EvalOptions]) -> Rewritten {
    let passes: Pipeline = pipeline.parse().unwrap_or_else(|error| panic!("{error}"));
    let mut graph = before.clone();
    let reports = passes.run(&mut graph).unwrap_or_else(|error| panic!("{error}\nin:\n{}", print(&before)));
    let runs = options.iter().map(|options| evaluate(&before, options)).collect();
    let rewritten = Rewritten { before, graph, reports, runs };
    rewritten.check(&passes, options).unwrap_or_else(|fault| {
        panic!("{fault}\nbefore:\n{}\nafter:\n{}", print(&rewritten.before), print(&rewritten.graph))
    });
    rewritten
}

/// Names of the collectives that a node stands for: its own, or its members'.
pub fn stands_for(graph: &Graph, id: NodeId) -> Vec<String> {
    let members = &graph.meta_of(id).members;
    if members.is_empty() {
        vec![graph.name_of(id).to_owned()]
    } else {
        members.iter().map(|name| name.to_string()).collect()
    }
}

fn collectives(graph: &Graph) -> Vec<NodeId> {
    graph.order().iter().copied().filter(|&id| graph.collective(id).is_some()).collect()
}

/// Kind, reduce op, group, variant and bytes of every collective of a graph, by name.
fn facts(graph: &Graph) -> HashMap<String, (String, Option<u64>)> {
    let fact = |id: NodeId| {
        let collective = graph.collective(id).expect("a collective");
        let bytes = bucketeer::passes::bucketing::collective_bytes(graph, id);
        (format!("{:?} {}", collective.kind, graph.group(collective.group).name), bytes)
    };
    collectives(graph).into_iter().map(|id| (graph.name_of(id).to_owned(), fact(id))).collect()
}

/// Length of the longest part of `list` that rises.
fn longest_rise(list: &[usize]) -> usize {
    let mut ends: Vec<usize> = Vec::new();
    for &item in list {
        let at = ends.partition_point(|&end| end < item);
        if at == ends.len() { ends.push(item) } else { ends[at] = item }
    }
    ends.len()
}

impl Rewritten {
    /// The new graph.
    pub fn text(&self) -> String {
        print(&self.graph)
    }

    /// The lines of the new graph from the first node on that is not an input.
    pub fn body(&self) -> String {
        let keep = |line: &&str| {
            !line.contains(" = input ") && !line.starts_with("group ") && !line.starts_with("graph ") && *line != "}"
        };
        self.text().lines().filter(keep).map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line))).collect()
    }

    /// What each bucketing pass decided.
    pub fn plans(&self) -> impl Iterator<Item = &BucketPlan> {
        self.reports.iter().filter_map(|report| report.plan.as_ref())
    }

    /// Names of the members of all buckets.
    pub fn buckets(&self) -> Vec<Vec<String>> {
        self.plans().flat_map(|plan| plan.names(&self.before)).collect()
    }

    /// What was said of a collective.
    pub fn remark(&self, name: &str) -> &Remark {
        let mut remarks = self.plans().flat_map(|plan| &plan.remarks);
        remarks.find(|remark| remark.name == name).unwrap_or_else(|| panic!("no remark on `{name}`"))
    }

    /// Why a collective was left alone.
    pub fn reason(&self, name: &str) -> &Reason {
        match &self.remark(name).decision {
            Decision::Alone(reason) => reason,
            Decision::Merged { bucket } => panic!("`{name}` was merged into bucket {bucket}"),
        }
    }

    /// How many collectives are of a kind.
    pub fn count(&self, kind: &str) -> usize {
        collectives(&self.graph)
            .into_iter()
            .filter(|&id| self.graph.collective(id).unwrap().kind.name() == kind)
            .count()
    }

    /// Names of the nodes in order.
    pub fn names(&self) -> Vec<&str> {
        names(&self.graph)
    }

    /// Where a node is in the new order.
    pub fn place(&self, name: &str) -> usize {
        self.names().iter().position(|known| *known == name).unwrap_or_else(|| panic!("no `{name}`"))
    }

    /// Nodes that moved, over all merges.
    pub fn moved(&self) -> usize {
        self.reports.iter().filter_map(|report| report.merge.as_ref()).map(|merge| merge.moved).sum()
    }

    /// Values that were copied out of their buckets, over all merges.
    pub fn copied(&self) -> usize {
        self.reports.iter().filter_map(|report| report.merge.as_ref()).map(|merge| merge.copied).sum()
    }

    /// Soft edges that could not be kept, over all merges.
    pub fn dropped_wishes(&self) -> Vec<(String, String)> {
        self.reports.iter().filter_map(|report| report.merge.as_ref()).flat_map(|m| m.dropped_wishes.clone()).collect()
    }

    /// Everything that holds for every rewrite.
    fn check(&self, passes: &Pipeline, options: &[EvalOptions]) -> Result<(), String> {
        verify(&self.graph).map_err(|errors| errors.to_string())?;
        self.check_caps()?;
        self.check_members()?;
        self.check_order()?;
        self.check_waits()?;
        self.check_proof()?;
        self.check_promotions()?;
        for (options, before) in options.iter().zip(&self.runs) {
            self.check_evaluation(options, before)?;
        }
        self.check_again(passes)
    }

    /// Each pass leaves its own output alone, and so do all of them together, unless one goes by neighbours and one after it
    /// may have made some.
    fn check_again(&self, passes: &Pipeline) -> Result<(), String> {
        let run = |passes: &Pipeline, graph: &mut Graph| {
            passes.run(graph).map(|_| ()).map_err(|error| format!("second run: {error}"))
        };
        let mut graph = self.before.clone();
        for pass in &passes.passes {
            let alone = Pipeline { passes: vec![pass.clone()] };
            run(&alone, &mut graph)?;
            let mut again = graph.clone();
            run(&alone, &mut again)?;
            if again != graph {
                return Err(format!("the second run of {} changed it to\n{}", pass.name(), print(&again)));
            }
        }
        let by_neighbours = |pass: &Pass| matches!(pass, Pass::Bucket(options) if options.policy == Policy::Adjacent);
        let merges = |pass: &Pass| matches!(pass, Pass::Bucket(_));
        let last = passes.passes.iter().rposition(merges).unwrap_or(0);
        if passes.passes[..last].iter().any(by_neighbours) {
            return Ok(());
        }
        let mut again = self.graph.clone();
        run(passes, &mut again)?;
        if again == self.graph {
            return Ok(());
        }
        Err(format!("the second run changed it to\n{}", print(&again)))
    }

    fn outputs_may_share(&self) -> bool {
        self.plans().any(|plan| plan.options.unpack == Unpack::Views)
    }

    /// The checker proves it; with regions it may not be able to decide.
    fn check_proof(&self) -> Result<(), String> {
        let options = Options { outputs_may_share: self.outputs_may_share(), ..Options::default() };
        match prove_with(&self.before, &self.graph, options) {
            Verdict::Equal(_) => Ok(()),
            Verdict::CannotDecide(_) if self.before.regions().len() > 1 => Ok(()),
            verdict => Err(format!("not proven: {verdict}")),
        }
    }

    /// The evaluator finds no difference, and what left without a wait, and nothing else, still does. Memory that the
    /// rewrite made lies as it says.
    fn check_evaluation(&self, options: &EvalOptions, before: &[RankOutputs]) -> Result<(), String> {
        let laid_out = self.made().map(|id| self.graph.name_of(id).to_owned()).collect();
        let ((old, ranks), (new, _)) = (with_members(&self.before), with_members(&self.graph));
        let options = EvalOptions { laid_out, ranks: Some(ranks), ..options.clone() };
        let comparison = compare(&old, &new, &options).map_err(|error| error.to_string())?;
        let allowed =
            |difference: &&Difference| self.outputs_may_share() && matches!(difference, Difference::Sharing { .. });
        if let Some(difference) = comparison.differences.iter().find(|difference| !allowed(difference)) {
            return Err(format!("the evaluator finds that {difference}"));
        }
        let left = |runs: &[RankOutputs]| -> Vec<bool> {
            runs.iter().flat_map(|rank| &rank.outputs).flat_map(pending).collect()
        };
        if left(before) != left(&evaluate(&self.graph, &options)) {
            return Err("results left in flight that did not before, or landed".to_owned());
        }
        Ok(())
    }

    /// What the rewrite packs has one dtype: no conversion is left to promotion.
    fn check_promotions(&self) -> Result<(), String> {
        for id in self.made().filter(|&id| self.graph.operator_of(id).id() == OperatorId::Cat) {
            let mut dtypes = self.graph.operands(id).iter().map(|&part| self.graph.tensor(part).map(|ty| ty.dtype));
            let first = dtypes.next();
            if dtypes.any(|dtype| Some(dtype) != first) {
                return Err(format!("`{}` promotes dtypes", self.graph.name_of(id)));
            }
        }
        Ok(())
    }

    /// The calls that the rewrite made.
    fn made(&self) -> impl Iterator<Item = NodeId> {
        let call = |graph: &Graph, id: &NodeId| matches!(graph.node(*id).op, Op::Call(_));
        let old = self.before.order().iter().filter(|id| call(&self.before, id)).map(|&id| self.before.name_of(id));
        let old: HashSet<&str> = old.collect();
        let calls = self.graph.order().iter().copied().filter(move |id| call(&self.graph, id));
        calls.filter(move |&id| !old.contains(self.graph.name_of(id)))
    }

    fn check_caps(&self) -> Result<(), String> {
        for plan in self.plans() {
            let mut seen = HashMap::new();
            for bucket in &plan.buckets {
                let index: &mut usize = seen.entry(bucket.key).or_default();
                // Buckets of one member count towards the index but are not listed, so the cap may be any from here on.
                let caps = &plan.options.caps;
                let limit = (*index..=caps.cap_bytes.len()).filter_map(|at| caps.limit(at)).max();
                *index += 1;
                let bytes: Option<u64> = bucket.members.iter().map(|member| member.bytes).sum();
                if bucket.members.len() < 2 || limit.is_some_and(|limit| bytes.is_none_or(|bytes| bytes > limit)) {
                    return Err(format!("a bucket of {:?} bytes is over its cap of {limit:?}", bytes));
                }
                if caps.max_members.is_some_and(|most| bucket.members.len() > most) {
                    return Err("a bucket has too many members".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Each collective is still there, in one merged launch, or accounted for by a pass that folds.
    fn check_members(&self) -> Result<(), String> {
        let (old, new) = (facts(&self.before), facts(&self.graph));
        let mut seen = HashSet::new();
        for id in collectives(&self.graph) {
            for name in stands_for(&self.graph, id) {
                if !seen.insert(name.clone()) {
                    return Err(format!("`{name}` travels twice"));
                }
                let Some((fact, bytes)) = old.get(&name) else { return Err(format!("`{name}` was not asked for")) };
                let (new_fact, new_bytes) = &new[self.graph.name_of(id)];
                let whole = self.graph.meta_of(id).members.is_empty();
                let dimless = |fact: &str| fact.replace(|c: char| c.is_ascii_digit(), "");
                if (whole && (fact, bytes) != (new_fact, new_bytes)) || dimless(fact) != dimless(new_fact) {
                    return Err(format!("`{name}` was {fact} of {bytes:?} bytes and is {new_fact}"));
                }
            }
        }
        let merged_away: usize = self.buckets().iter().map(Vec::len).sum::<usize>();
        let folded: usize = self.reports.iter().filter(|r| r.name != "dedupe-waits").map(|r| r.removed).sum();
        let all_empty =
            self.plans().flat_map(|plan| &plan.buckets).filter(|b| b.members.iter().all(|m| m.bytes == Some(0)));
        let empty: usize = all_empty.map(|bucket| bucket.members.len()).sum();
        if old.len() > seen.len() + folded + empty {
            return Err(format!("{} collectives became {} ({merged_away} merged)", old.len(), seen.len()));
        }
        Ok(())
    }

    /// Nodes that no merge touched keep their order but for those that had to move.
    fn check_order(&self) -> Result<(), String> {
        let place: HashMap<&str, usize> = names(&self.before).into_iter().zip(0..).collect();
        let touched: HashSet<String> = self
            .plans()
            .flat_map(|plan| &plan.buckets)
            .flat_map(|bucket| &bucket.members)
            .map(|member| self.before.name_of(member.collective).to_owned())
            .collect();
        let kept: Vec<usize> = names(&self.graph)
            .into_iter()
            .filter(|name| !touched.contains(*name))
            .filter_map(|name| place.get(name).copied())
            .collect();
        let displaced = kept.len() - longest_rise(&kept);
        if displaced > self.moved() {
            return Err(format!("{displaced} nodes are out of order, of {} that were moved", self.moved()));
        }
        Ok(())
    }

    /// A collective that was waited for once is waited for once, or its launch is.
    fn check_waits(&self) -> Result<(), String> {
        let waits = |graph: &Graph, id: NodeId| {
            let is_wait = |user: &&NodeId| graph.node(**user).op == Op::Wait && graph.operands(**user).contains(&id);
            graph.order().iter().filter(is_wait).count()
        };
        for id in collectives(&self.graph) {
            let merged = !self.graph.meta_of(id).members.is_empty();
            let name = self.graph.name_of(id);
            let old = self.before.order().iter().copied().find(|&old| self.before.name_of(old) == name);
            let expected = if merged { 1 } else { old.map_or(1, |old| waits(&self.before, old)).min(1) };
            let coalesced = self.graph.collective(id).is_some_and(|c| c.coalesced);
            let found = waits(&self.graph, id);
            // A write in flight to the same memory is waited for under the same name.
            let functional = |&id: &NodeId| self.before.collective(id).is_none_or(|c| c.variant == Variant::Functional);
            // A hard edge may keep a wait below the first one.
            // A wait for a list stays beside a wait for one of them.
            let listed = |&wait: &NodeId| self.graph.waits_for_list(wait) && self.graph.operands(wait).contains(&id);
            let deduped = self.reports.iter().any(|report| report.name == "dedupe-waits")
                && self.before.control.iter().all(|edge| edge.strength == Strength::Soft)
                && self.before.order().iter().all(functional)
                && !self.graph.order().iter().any(listed);
            if !coalesced && (found < expected || (found > expected && deduped)) {
                return Err(format!("`{name}` is waited for {found} times, expected {expected}"));
            }
        }
        Ok(())
    }
}

/// Names of the nodes of a graph in order.
pub fn names(graph: &Graph) -> Vec<&str> {
    graph.order().iter().map(|&id| graph.name_of(id)).collect()
}

/// Whether `to` needs `from`, over all order.
pub fn depends(graph: &Graph, to: &str, from: &str) -> bool {
    let dependencies = Dependencies::of(graph);
    let slot = |name: &str| {
        let id = graph.order().iter().copied().find(|&id| graph.name_of(id) == name);
        dependencies.slot_of(id.unwrap_or_else(|| panic!("no `{name}`")))
    };
    let (goal, mut stack, mut seen) = (slot(from), vec![slot(to)], HashSet::new());
    while let Some(at) = stack.pop() {
        if at == goal {
            return true;
        }
        stack.extend(
            dependencies.before(at).iter().map(|&before| before as usize).filter(|&before| seen.insert(before)),
        );
    }
    false
}
