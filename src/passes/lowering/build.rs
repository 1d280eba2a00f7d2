//! Makes the parts of a program: buffers, layouts, steps.

use super::LowerError;
use crate::ir::Short;
use crate::ir::{Args, DType, Graph, TensorType};
use crate::program::{
    Buffer, BufferId, BufferKind, CallForm, Collective, Layout, LayoutId, Path, Program, Range, Step, StepId, StepKind,
    Stream, View,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Buffers lie at multiples of this at least: the longest access of common hardware.
const LEAST_ALIGN: u64 = 16;

pub(super) struct Builder {
    pub program: Program,
    layouts: HashMap<Layout, LayoutId, FxBuildHasher>,
    /// By target and arguments in the graph.
    calls: HashMap<(u32, u32), u32, FxBuildHasher>,
    last_compute: Option<StepId>,
    /// By group: the launch that was issued last.
    last_launch: Vec<Option<StepId>>,
}

impl Builder {
    pub fn new(graph: &Graph, align_bytes: u64) -> Self {
        let groups = graph.groups().iter().map(|group| crate::program::Group {
            name: group.name.clone(),
            size: group.size.unwrap_or(0),
            members: group.members.iter().map(|list| list.iter().map(|rank| rank.0).collect()).collect(),
        });
        let program = Program { name: graph.name.clone(), align_bytes, groups: groups.collect(), ..Program::default() };
        Self {
            last_launch: vec![None; program.groups.len()],
            program,
            layouts: HashMap::default(),
            calls: HashMap::default(),
            last_compute: None,
        }
    }

    pub fn layout_id(&mut self, layout: Layout) -> LayoutId {
        if let Some(&id) = self.layouts.get(&layout) {
            return id;
        }
        let id = LayoutId(self.program.layouts.len() as u32);
        self.program.layouts.push(layout.clone());
        self.layouts.insert(layout, id);
        id
    }

    pub fn layout(&self, view: View) -> &Layout {
        self.program.layout(view.layout)
    }

    /// A new buffer.
    pub fn buffer(&mut self, name: &str, bytes: u64, kind: BufferKind, device: Option<&str>) -> BufferId {
        let align = self.program.align_bytes.max(LEAST_ALIGN);
        let (name, device) = (name.into(), device.map(Box::from));
        self.program.buffers.push(Buffer { name, bytes, align, kind, device, group: None, place: None });
        BufferId(self.program.buffers.len() as u32 - 1)
    }

    /// All of a new buffer of `layout`.
    pub fn tensor(&mut self, name: &str, layout: Layout, kind: BufferKind, device: Option<&str>) -> View {
        let bytes = layout.span_bytes().unwrap_or(0);
        let buffer = self.buffer(name, bytes, kind, device);
        let layout = self.layout_id(layout);
        View { buffer, layout, offset: 0, rank_bytes: 0 }
    }

    /// The view with another layout, `skip` elements of the old dtype further.
    pub fn moved(&mut self, view: View, layout: Layout, skip: u64) -> Option<View> {
        let offset = view.offset.checked_add(skip.checked_mul(self.layout(view).dtype.bytes())?)?;
        let layout = self.layout_id(layout);
        Some(View { layout, offset, ..view })
    }

    /// The bytes of a dense view.
    pub fn range(&self, view: View) -> Option<Range> {
        let layout = self.layout(view);
        let View { buffer, offset, rank_bytes, .. } = view;
        let bytes = layout.elements()?.checked_mul(layout.dtype.bytes())?;
        layout.is_dense().then_some(Range { buffer, offset, bytes, rank_bytes })
    }

    /// A range as a view of one dimension or more.
    pub fn view_of(&mut self, range: Range, dtype: DType, shape: &[u64]) -> Option<View> {
        let layout = self.layout_id(Layout::dense(dtype, shape)?);
        Some(View { buffer: range.buffer, layout, offset: range.offset, rank_bytes: range.rank_bytes })
    }

    pub fn is_comm(&self, buffer: BufferId) -> bool {
        self.program.buffer(buffer).kind == BufferKind::Comm
    }

    /// Whether a buffer is the program's.
    pub fn owns(&self, buffer: BufferId) -> bool {
        !matches!(self.program.buffer(buffer).kind, BufferKind::Input | BufferKind::Constant)
    }

    /// The number of a call; `key` is of its target and arguments in the graph.
    pub fn call(&mut self, key: (u32, u32), form: impl FnOnce() -> (Box<str>, Args)) -> u32 {
        let calls = &mut self.program.calls;
        *self.calls.entry(key).or_insert_with(|| {
            let (target, args) = form();
            calls.push(CallForm { target, args });
            calls.len() as u32 - 1
        })
    }

    /// Adds a step of the compute stream.
    pub fn step(&mut self, node: &str, kind: StepKind) -> StepId {
        let after = if let StepKind::Wait(of) = kind { Short::from([of]) } else { Short::new() };
        self.push(Step { node: node.into(), stream: Stream::Compute, after, kind })
    }

    /// Adds a step of the compute stream that keeps its order with all launches.
    pub fn fence(&mut self, node: &str, kind: StepKind) {
        let after = self.last_launch.iter().flatten().copied().collect();
        self.push(Step { node: node.into(), stream: Stream::Compute, after, kind });
    }

    /// Adds a launch.
    pub fn launch(&mut self, node: &str, collective: Collective) -> StepId {
        let group = collective.group;
        let (stream, after) = match collective.path {
            Path::Normal => (Stream::Comm(group), self.last_compute.into_iter().collect()),
            Path::OneShot => (Stream::Compute, Short::new()),
        };
        let kind = StepKind::Collective(collective);
        let id = self.push(Step { node: node.into(), stream, after, kind });
        if stream != Stream::Compute {
            self.last_launch[group as usize] = Some(id);
        }
        id
    }

    fn push(&mut self, step: Step) -> StepId {
        let id = StepId(self.program.steps.len() as u32);
        if step.stream == Stream::Compute {
            self.last_compute = Some(id);
        }
        self.program.steps.push(step);
        id
    }
}

/// The layout of a type; `None` for what passes 64 bits.
pub(super) fn layout_of(ty: &TensorType) -> Option<Layout> {
    let numbers = |dims: &[crate::ir::Dim]| dims.iter().map(crate::ir::Dim::as_const).collect::<Option<Short<_, 4>>>();
    let shape: Short<u64, 4> = numbers(&ty.shape)?;
    match &ty.strides {
        Some(strides) => Some(Layout { dtype: ty.dtype, shape, strides: numbers(strides)? }),
        None => Layout::dense(ty.dtype, &shape),
    }
}

/// Refuses a node.
pub(super) fn refuse<T>(graph: &Graph, id: crate::ir::NodeId, reason: impl Into<String>) -> Result<T, LowerError> {
    let (node, target) = (graph.name_of(id).to_owned(), graph.target_of(id).to_owned());
    Err(LowerError::Node { node, target, reason: reason.into() })
}
