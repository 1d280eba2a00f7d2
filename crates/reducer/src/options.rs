//! How a reducer behaves.

use crate::assign::Caps;
use bucketeer_types::DType;
use std::time::Duration;

/// How gradients become one. All ranks say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// The mean over ranks: each rank's gradient times 1/W, in the gradient's dtype, then summed, as c10d does.
    #[default]
    Mean,
    /// The sum.
    Sum,
    /// The mean over samples: each step says how many samples the rank had; see
    /// [`Reducer::weighted_step`](crate::Reducer::weighted_step).
    Weighted,
}

/// What becomes of a parameter that this rank did not use in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unused {
    /// It is an error of the step.
    #[default]
    Refuse,
    /// The rank gives zeros, and gets the average if another rank used it. One that no rank used keeps its gradient.
    Average,
    /// The same, but a rank that did not use it keeps its own gradient.
    KeepMine,
    /// The same as `Average`, but a bucket of unused parameters alone is not launched. All ranks have to agree on what is
    /// unused, which is checked.
    Skip,
}

/// When buckets are made again, by the order in which gradients became ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rebuild {
    /// Once, after the first step, or the second one of a static graph; never where unused parameters are allowed, as the
    /// order then may change from step to step.
    #[default]
    Auto,
    /// Once, also where unused parameters are allowed.
    Once,
    /// Never.
    Never,
}

/// What is launched in steps before the rebuild, when only the order of definition is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstStep {
    /// One bucket for each dtype, where a rebuild follows; else buckets. So no early bucket meets a collective of the model
    /// that other ranks launch first.
    #[default]
    OneLaunch,
    /// Buckets, in reverse order of definition.
    Buckets,
}

/// Which end of a rebuilt list has the bucket of the first cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmallBucket {
    /// The one that is launched first.
    #[default]
    First,
    /// The one that is launched last, whose message nothing hides. In a bucket the order is then that of readiness, reversed, as
    /// in c10d with `DDP_SET_LAST_BUCKET_CAP=1`.
    Last,
}

/// Where a mean is divided, if gradients are sent in another dtype than they have.
///
/// Of values that are finite in f16, up to 65 504, a sum may not be; and of values that are not 0, from 6e-8, a part may be. So
/// where to divide decides which gradients are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Divide {
    /// In the gradient's dtype, before it is rounded to that of the wire: sums cannot overflow where means do not.
    #[default]
    BeforeCast,
    /// In the dtype of the wire, as PyTorch's mixed precision does.
    OnWire,
    /// After the sum, in the gradient's dtype: the smallest gradients survive, large ones may overflow.
    AfterSum,
}

/// Gradients are sent in another dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Of the buckets: a float. Complex gradients are sent as complex numbers of it.
    pub dtype: DType,
    /// Where a mean is divided.
    pub divide: Divide,
}

/// How a reducer behaves. All but the timeout is the same on all ranks, which is checked when a reducer is made; caps may
/// differ before the rebuild, when rank 0's hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReducerOptions {
    /// How large buckets may be.
    pub caps: Caps,
    /// How gradients become one.
    pub scale: Scale,
    /// What becomes of parameters without a gradient.
    pub unused: Unused,
    /// Every step marks the same parameters equally often; what the first step marks is what each later one must. Ranks
    /// may differ.
    pub static_graph: bool,
    /// When buckets are made again.
    pub rebuild: Rebuild,
    /// What is launched before.
    pub first_step: FirstStep,
    /// Where the first cap counts.
    pub small_bucket: SmallBucket,
    /// Another dtype to send.
    pub wire: Option<Wire>,
    /// How long a collective may take; none takes the backend's.
    pub timeout: Option<Duration>,
}

impl ReducerOptions {
    /// Whether a parameter may be without a gradient in a step.
    pub(crate) fn allows_unused(&self) -> bool {
        self.unused != Unused::Refuse
    }

    /// Whether buckets are made again.
    pub(crate) fn rebuilds(&self) -> bool {
        match self.rebuild {
            Rebuild::Auto => self.static_graph || !self.allows_unused(),
            Rebuild::Once => true,
            Rebuild::Never => false,
        }
    }

    /// Caps of the buckets before the rebuild.
    pub(crate) fn initial_caps(&self) -> Vec<u64> {
        let buckets =
            self.first_step == FirstStep::Buckets || !self.rebuilds() || (self.allows_unused() && !self.static_graph);
        match &self.caps {
            Caps::Bytes { .. } | Caps::Fit(_) if !buckets => vec![u64::MAX],
            caps => caps.list(),
        }
    }

    /// What all ranks must have in common, as a text.
    pub(crate) fn common(&self) -> String {
        let Self { caps, scale, unused, static_graph, rebuild, first_step, small_bucket, wire, timeout: _ } = self;
        let graph = if *static_graph { "static" } else { "dynamic" };
        let wire = wire
            .map_or_else(|| "none".to_owned(), |wire| format!("{} divided {:?}", wire.dtype.short_name(), wire.divide));
        let sizes = caps.fit().map_or_else(
            || "by caps".to_owned(),
            |fit| {
                format!(
                    "that fit, of {} steps and {}",
                    fit.measured_steps,
                    if fit.cost.is_some() { "a cost" } else { "timed messages" }
                )
            },
        );
        format!(
            "sizes {sizes}, scale {scale:?}, unused {unused:?}, graph {graph}, rebuild {rebuild:?}, first step {first_step:?}, \
             small bucket {small_bucket:?}, wire {wire}"
        )
    }
}
