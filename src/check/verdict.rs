//! What the checker says.

use std::fmt;

/// How strict to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Whether outputs may share memory that they did not share in the source, as in PyTorch's merged graphs.
    pub outputs_may_share: bool,
    /// Whether launches of a group may stand in another order than the merges ask for: PyTorch's sort after merging
    /// moves some. Every rank must then run the very same graph.
    pub launches_may_move: bool,
}

/// Whether two graphs compute the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// They do.
    Equal(Proof),
    /// They do not, or not provably: the first thing that differs. Nothing that only one graph has, and that could not be
    /// followed, is part of it.
    Different(Box<Difference>),
    /// Something could not be followed.
    CannotDecide(Box<Undecided>),
}

/// What was proven.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Proof {
    /// How much was looked at.
    pub stats: Stats,
    /// Ranks that the result is made for; on others it is wrong.
    pub ranks: Vec<RankNote>,
    /// What has to hold of operators that nothing describes.
    pub assumptions: Vec<Assumption>,
    /// With [`Options::outputs_may_share`]: outputs that newly share memory, with what.
    pub shared_outputs: Vec<(String, String)>,
}

/// What a proof takes for granted of an operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assumption {
    /// The operator.
    pub operator: String,
    /// What is assumed: "does not communicate".
    pub assumed: String,
}

/// Counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Nodes of both graphs.
    pub nodes: usize,
    /// Distinct values.
    pub values: usize,
    /// Ranges of bytes looked at.
    pub pieces: usize,
    /// Collectives of the source.
    pub launches_before: usize,
    /// Collectives of the result.
    pub launches_after: usize,
}

/// A gather that is right on one rank only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankNote {
    /// The group.
    pub group: String,
    /// The rank in it.
    pub rank: u32,
    /// The gather.
    pub node: String,
}

/// Which graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The source.
    Before = 0,
    /// The result.
    After = 1,
}

/// One side of a difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Term {
    /// The node, if there is one.
    pub node: Option<String>,
    /// What it is.
    pub text: String,
}

/// The first thing that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// What differs.
    pub what: What,
    /// In the source.
    pub before: Term,
    /// In the result.
    pub after: Term,
}

/// What differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// The graphs have other inputs: they do not belong together.
    Inputs,
    /// The graphs have other regions.
    Regions,
    /// A group has other members.
    Groups,
    /// The outputs have another structure.
    Structure,
    /// An output has another value.
    Output {
        /// Place among the outputs' values.
        index: usize,
        /// Its nodes' names in source and result.
        names: [String; 2],
    },
    /// Another value is left in the memory of an input.
    InputMemory {
        /// The input.
        name: String,
    },
    /// Another value is left in an attribute of the module.
    Attribute {
        /// The attribute.
        name: String,
    },
    /// Random numbers are drawn otherwise.
    RandomState,
    /// Calls of graphs that launch stand in another order, or one of them on another side of a launch.
    CalledLaunches,
    /// Fences run otherwise, or a collective crossed one.
    Fences,
    /// A graph breaks a rule of its own.
    IllFormed(Side),
    /// A collective of the source is not launched.
    Dropped,
    /// The result launches something that the source does not.
    Extra,
    /// One coalesced collective became several launches.
    Apart,
    /// A wait is gone.
    Wait,
    /// What a launch sends is written while it is in flight.
    Race,
    /// Launches of a group stand in another order.
    Order,
    /// A hard order edge is lost.
    Control,
    /// Outputs share memory that they did not share.
    SharedOutput,
}

/// What could not be followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Undecided {
    /// In which graph.
    pub side: Side,
    /// At which node.
    pub node: String,
    /// What.
    pub reason: String,
}

impl Verdict {
    /// Whether the graphs are proven equal.
    #[must_use]
    pub const fn is_equal(&self) -> bool {
        matches!(self, Self::Equal(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal(proof) => {
                f.write_str("equal")?;
                for (index, assumption) in proof.assumptions.iter().enumerate() {
                    write!(f, "{}{assumption}", if index == 0 { ", if " } else { " and " })?;
                }
                write!(f, ": {} launches became {}", proof.stats.launches_before, proof.stats.launches_after)
            }
            Self::Different(difference) => write!(f, "different: {difference}"),
            Self::CannotDecide(undecided) => write!(f, "cannot decide: {undecided}"),
        }
    }
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.operator, self.assumed)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "source",
            Self::After => "result",
        })
    }
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, `{}`: {}", self.side, self.node, self.reason)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inputs => f.write_str("the inputs differ"),
            Self::Groups => f.write_str("the members of a group differ"),
            Self::Regions => f.write_str("the regions differ"),
            Self::Structure => f.write_str("the outputs have another structure"),
            Self::Output { index, names: [before, after] } if before == after => {
                write!(f, "output {index}, `{before}`, has another value")
            }
            Self::Output { index, names: [before, after] } => {
                write!(f, "output {index}, `{before}` and now `{after}`, has another value")
            }
            Self::InputMemory { name } => write!(f, "another value is left in input `{name}`"),
            Self::Attribute { name } => write!(f, "another value is left in `{name}`"),
            Self::CalledLaunches => f.write_str("graphs that launch are called in another order"),
            Self::RandomState => f.write_str("random numbers are drawn in another order"),
            Self::Fences => f.write_str("the order around fences differs"),
            Self::IllFormed(side) => write!(f, "the {side} is not well-formed"),
            Self::Dropped => f.write_str("a collective is dropped"),
            Self::Extra => f.write_str("a launch sends what the source does not send"),
            Self::Apart => f.write_str("a coalesced collective is launched in parts"),
            Self::Wait => f.write_str("a wait is dropped"),
            Self::Race => f.write_str("what a launch sends is written while it is in flight"),
            Self::Order => f.write_str("the launches of a group stand in another order"),
            Self::Control => f.write_str("a hard order edge is lost"),
            Self::SharedOutput => f.write_str("an output shares memory that it did not share"),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Some(node) => write!(f, "`{node}`: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  before  {}\n  after   {}", self.what, self.before, self.after)
    }
}
