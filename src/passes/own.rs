//! A toolchain's own rules and passes, beside the built-in ones.
//!
//! [`BucketPolicy`] changes what a bucket pass decides: what collectives agree on, what they cost, which travel together,
//! where they are launched. [`GraphPass`] is any pass; [`Pass::Own`](super::Pass::Own) puts it into a pipeline, which
//! verifies what it makes. What is legal stays decided here: a rule that asks for a loop, for members that differ or for
//! more than a cap is refused, and a rewrite is proven as any other.

use super::bucketing::{BucketOptions, BucketPlan, View, planned_within};
use super::merge::{MergeError, merge_at};
use super::order::Place;
use super::pipeline::PassReport;
use super::rounds::Round;
use super::select::{Outcome, PlanGraph, Refusal, Selection, selected};
use crate::ir::{Dependencies, Graph, NodeId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::fmt;
use std::sync::Arc;

/// A rule of one's own for a bucket pass. All methods but the name have defaults, which are those of the pass's options.
///
/// Every rank plans by itself: a rule is a pure function of its arguments, or ranks launch different things.
///
/// ```
/// use bucketeer::ir::{Dependencies, Graph, NodeId, text};
/// use bucketeer::passes::own::{BucketPolicy, plan_with};
/// use bucketeer::passes::{BucketKind, BucketOptions};
///
/// /// Gradients of embeddings stay apart from all others, as they are ready last.
/// struct Embeddings;
///
/// impl BucketPolicy for Embeddings {
///     fn name(&self) -> &'static str {
///         "embeddings"
///     }
///
///     fn key(&self, graph: &Graph, collective: NodeId) -> u32 {
///         u32::from(graph.name_of(collective).starts_with("embedding"))
///     }
/// }
///
/// let graph = text::parse(
///     "a = input f32[8]; embedding_0 = all_reduce(a, sum, world:8); w0 = wait(embedding_0)
///      b = input f32[8]; mlp_0 = all_reduce(b, sum, world:8); w1 = wait(mlp_0)
///      c = input f32[8]; mlp_1 = all_reduce(c, sum, world:8); w2 = wait(mlp_1)
///      output(w0, w1, w2)",
/// )?;
/// let options = BucketOptions::new(BucketKind::AllReduce);
/// let plan = plan_with(&graph, &Dependencies::of(&graph), &options, &Embeddings)?;
/// assert_eq!(plan.names(&graph), [["mlp_0", "mlp_1"]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait BucketPolicy: Send + Sync {
    /// Its name, for reports.
    fn name(&self) -> &'static str;

    /// What else members of one bucket agree on: only collectives of equal keys travel together.
    fn key(&self, graph: &Graph, collective: NodeId) -> u32 {
        let _ = (graph, collective);
        0
    }

    /// What a collective counts with against the caps. `bytes` is what the options count; `None` where it is not known,
    /// which keeps it out of a bucket with a cap.
    fn cost_bytes(&self, graph: &Graph, collective: NodeId, bytes: Option<u64>) -> Option<u64> {
        let _ = (graph, collective);
        bytes
    }

    /// Which candidates travel together: lists of at least two, in the order in which they are packed. `None` leaves that
    /// to the policy of the options.
    fn choose(&self, candidates: &Candidates<'_>) -> Option<Vec<Vec<NodeId>>> {
        let _ = candidates;
        None
    }

    /// Where merged launches go. `None` is where the kind's go.
    fn place(&self, plan: &BucketPlan) -> Option<Place> {
        let _ = plan;
        None
    }
}

/// What a rule chooses from.
pub struct Candidates<'a> {
    view: &'a View<'a>,
    list: Vec<NodeId>,
}

impl Candidates<'_> {
    /// The graph.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        self.view.graph
    }

    /// What must run before what.
    #[must_use]
    pub const fn dependencies(&self) -> &Dependencies {
        self.view.dependencies
    }

    /// The collectives that may be merged, in issue order.
    #[must_use]
    pub fn list(&self) -> &[NodeId] {
        &self.list
    }

    /// What a candidate counts with against the caps, in bytes.
    ///
    /// # Panics
    /// If the node is not a candidate.
    #[must_use]
    pub fn bytes(&self, candidate: NodeId) -> Option<u64> {
        self.view.entry(self.view.dependencies.slot_of(candidate)).bytes
    }

    /// Whether two candidates agree on all that members of one bucket agree on.
    ///
    /// # Panics
    /// If one of them is not a candidate.
    #[must_use]
    pub fn agree(&self, one: NodeId, other: NodeId) -> bool {
        let key = |id| self.view.entry(self.view.dependencies.slot_of(id)).key;
        key(one) == key(other)
    }
}

/// What a rule chose that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A bucket holds what may not be merged.
    #[error("policy `{policy}` chose `{node}`, which is not a candidate; choose among those it is given")]
    NotACandidate {
        /// The rule.
        policy: &'static str,
        /// What it chose.
        node: String,
    },
    /// A candidate is in two buckets, or twice in one.
    #[error("policy `{policy}` chose `{node}` twice; a collective travels once")]
    Twice {
        /// The rule.
        policy: &'static str,
        /// What it chose.
        node: String,
    },
    /// Members differ in what they must agree on.
    #[error("policy `{policy}` chose `{one}` and `{other}` for one bucket; they differ in {}", fields.join(", "))]
    Differ {
        /// The rule.
        policy: &'static str,
        /// The bucket's first member.
        one: String,
        /// The member that differs.
        other: String,
        /// In what.
        fields: Vec<&'static str>,
    },
    /// A bucket is above a cap, or its bytes are not known and there is one.
    #[error("policy `{policy}` chose a bucket from `{first}` on that does not fit the caps: {found}")]
    Cap {
        /// The rule.
        policy: &'static str,
        /// The bucket's first member.
        first: String,
        /// What was found.
        found: String,
    },
}

/// Chooses the buckets of one kind, as [`plan`](super::bucketing::plan()) does, by a rule of one's own.
///
/// # Errors
/// [`PolicyError`], for a choice that cannot be. That buckets depend on one another in a circle is found by
/// [`merge`](super::merge::merge()).
pub fn plan_with(
    graph: &Graph,
    dependencies: &Dependencies,
    options: &BucketOptions,
    policy: &dyn BucketPolicy,
) -> Result<BucketPlan, PolicyError> {
    let view = View::new(graph, dependencies, options, Round::Only, Some(policy));
    let slots: Vec<usize> = (0..view.node_count()).filter(|&slot| view.candidate_at(slot).is_some()).collect();
    let candidates = Candidates { view: &view, list: slots.iter().map(|&slot| view.node(slot)).collect() };
    let selection = match policy.choose(&candidates) {
        None => selected(&view, options.policy, &options.caps),
        Some(chosen) => checked(&view, &slots, options, policy.name(), &chosen)?,
    };
    Ok(planned_within(&view, selection, options, Some(policy)).0)
}

/// A choice as a selection, if it keeps to the rules.
fn checked(
    view: &View<'_>,
    candidates: &[usize],
    options: &BucketOptions,
    policy: &'static str,
    chosen: &[Vec<NodeId>],
) -> Result<Selection, PolicyError> {
    let name = |id: NodeId| view.graph.name_of(id).to_owned();
    let mut bucket_of = HashMap::<usize, usize, FxBuildHasher>::default();
    let mut opened = HashMap::<_, usize, FxBuildHasher>::default();
    let mut selection = Selection::default();
    for members in chosen.iter().filter(|members| members.len() > 1) {
        let mut slots = Vec::with_capacity(members.len());
        for &id in members {
            let slot = view.dependencies.slot_of(id);
            if view.candidate_at(slot).is_none() {
                return Err(PolicyError::NotACandidate { policy, node: name(id) });
            }
            if bucket_of.insert(slot, selection.buckets.len()).is_some() {
                return Err(PolicyError::Twice { policy, node: name(id) });
            }
            slots.push(slot);
        }
        let first = view.entry(slots[0]);
        if let Some(&other) = slots.iter().find(|&&slot| view.entry(slot).key != first.key) {
            let fields = first.key.differences(&view.entry(other).key);
            return Err(PolicyError::Differ { policy, one: name(members[0]), other: name(view.node(other)), fields });
        }
        let nth = opened.entry(first.key).or_default();
        let over = |found| Err(PolicyError::Cap { policy, first: name(members[0]), found });
        if let Some(most) = options.caps.max_members.filter(|&most| members.len() > most) {
            return over(format!("{} members are more than {most}", members.len()));
        }
        if let Some(limit) = options.caps.limit(*nth) {
            let bytes = slots.iter().try_fold(0u64, |sum, &slot| sum.checked_add(view.entry(slot).bytes?));
            match bytes {
                None => return over("the bytes of a member are not known".to_owned()),
                Some(bytes) if bytes > limit => return over(format!("{bytes} bytes are more than {limit}")),
                Some(_) => {}
            }
        }
        *nth += 1;
        selection.buckets.push(slots);
    }
    let outcome = |&node: &usize| Outcome { node, bucket: bucket_of.get(&node).copied().ok_or(Refusal::NotChosen) };
    selection.outcomes = candidates.iter().map(outcome).collect();
    Ok(selection)
}

/// A pass of one's own.
pub trait GraphPass: fmt::Debug + Send + Sync {
    /// Its name, as reports and the text of a pipeline have it.
    fn name(&self) -> &'static str;

    /// Changes the graph, and says what was done. The pipeline verifies the graph afterwards where the report says that
    /// it [changed](PassReport::changed), so a pass that changes a graph counts it.
    ///
    /// # Errors
    /// Why it cannot; the graph is thrown away then.
    fn run(&self, graph: &mut Graph) -> Result<PassReport, Box<dyn std::error::Error + Send + Sync>>;
}

/// A pass of one's own in a pipeline. Equal to its clones alone.
#[derive(Clone, Debug)]
pub struct OwnPass(pub Arc<dyn GraphPass>);

impl PartialEq for OwnPass {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OwnPass {}

/// A bucket pass with a rule of one's own.
pub struct BucketWith {
    /// Its options.
    pub options: BucketOptions,
    /// The rule.
    pub policy: Arc<dyn BucketPolicy>,
}

impl fmt::Debug for BucketWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{{}}}", self.policy.name(), self.options)
    }
}

impl GraphPass for BucketWith {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn run(&self, graph: &mut Graph) -> Result<PassReport, Box<dyn std::error::Error + Send + Sync>> {
        let dependencies = Dependencies::keeping_schedule(graph);
        let plan = plan_with(graph, &dependencies, &self.options, &*self.policy)?;
        let merged = merge_at(graph, &dependencies, &plan, self.policy.place(&plan));
        let merged = merged.map_err(|error: MergeError| Box::new(error))?;
        let mut report = PassReport::new(self.name());
        report.plan = Some(plan);
        report.merge = Some(merged);
        Ok(report)
    }
}
