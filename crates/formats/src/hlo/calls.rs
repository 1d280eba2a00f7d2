//! Who calls which computation, and what becomes of it in the graph.
//!
//! Bodies of loops, branches and calls are regions. All others (bodies of fusions, of reductions, of custom calls) are
//! part of the instruction that calls them: there a digest of the body's text stands for it, so that instructions with
//! different bodies are different calls, whatever the bodies are called.

use super::module::{Computation, Instruction, Module};
use super::opcodes::{Doing, doing};
use bucketeer::ir::RegionKind;

/// What becomes of a computation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Part of its caller.
    Inner,
    /// A region.
    Region(RegionKind),
    /// The graph itself.
    Entry,
}

/// Attributes whose computations become regions, of an opcode.
pub(super) fn region_attributes(opcode: &str) -> &'static [&'static str] {
    match opcode {
        "while" => &["condition", "body"],
        "conditional" => &["branch_computations", "true_computation", "false_computation"],
        "call" => &["to_apply"],
        "async-start" => &["calls"],
        _ => &[],
    }
}

/// The role of each computation.
pub(super) fn roles(text: &str, module: &Module) -> Vec<Role> {
    let mut roles = vec![Role::Inner; module.computations.len()];
    roles[module.entry] = Role::Entry;
    // Callers stand below what they call, so that a role is known once all computations below are done.
    for caller in (0..roles.len()).rev() {
        if roles[caller] == Role::Inner || !module.computations[caller].opcodes.regions {
            continue;
        }
        let in_loop = roles[caller] == Role::Region(RegionKind::Loop);
        for instruction in &module.instructions[module.computations[caller].instructions()] {
            let opcode = instruction.opcode.of(text);
            for key in region_attributes(opcode) {
                let Some(value) = module.attribute(text, instruction, key) else { continue };
                let kind = match opcode {
                    _ if in_loop => RegionKind::Loop,
                    "while" => RegionKind::Loop,
                    "conditional" => RegionKind::Branch,
                    _ => RegionKind::Called,
                };
                for callee in module.called(value) {
                    let wraps = opcode == "async-start" && wrapped(text, module, callee).is_some();
                    let known = matches!(roles[callee], Role::Entry | Role::Region(RegionKind::Loop));
                    if !wraps && !known {
                        roles[callee] = Role::Region(kind);
                    }
                }
            }
        }
    }
    roles
}

/// The one instruction of a computation that only hands its parameters on to it, in order: what an async wrapper runs.
pub(super) fn wrapped<'m>(text: &str, module: &'m Module, computation: usize) -> Option<&'m Instruction> {
    let computation: &Computation = &module.computations[computation];
    let root = &module.instructions[computation.root as usize];
    let operands = module.operands(root);
    let number = |operand: &super::module::Operand| {
        let target = &module.instructions[operand.target as usize];
        (target.opcode.of(text) == "parameter").then(|| target.arguments.of(text).trim().parse::<usize>().ok())?
    };
    let in_order = operands.iter().enumerate().all(|(nth, operand)| number(operand) == Some(nth));
    (in_order && operands.len() + 1 == computation.instructions().len()).then_some(root)
}

/// A digest of the body, and of all that it calls, of each computation that is called; 0 for the others. 128 bits, by
/// FNV-1a over words of eight bytes. Equal texts have equal digests in every run and release.
pub(super) fn digests(text: &str, module: &Module) -> Vec<u128> {
    let mut digests: Vec<u128> = Vec::with_capacity(module.computations.len());
    for (computation, is_called) in module.computations.iter().zip(module.is_called()) {
        if !is_called {
            digests.push(0);
            continue;
        }
        let mut digest = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
        let mut add = |word: u128| digest = (digest ^ word).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        let body = computation.body.of(text).as_bytes();
        let (words, rest) = body.as_chunks::<8>();
        words.iter().for_each(|&word| add(u64::from_le_bytes(word).into()));
        rest.iter().for_each(|&byte| add(byte.into()));
        add(body.len() as u128);
        module.called(computation.body).for_each(|callee| add(digests[callee]));
        digests.push(digest);
    }
    digests
}

/// By computation: an instruction in it, or in what it calls, that moves data between devices or may do so; `None` if there
/// is none. Of those that are regions or the entry, the graph has the instructions themselves.
pub(super) fn hidden(text: &str, module: &Module) -> Vec<Option<u32>> {
    let mut hidden: Vec<Option<u32>> = Vec::with_capacity(module.computations.len());
    // Opcodes are few, instructions are many.
    let mut computes = hashbrown::HashMap::<&str, bool, rustc_hash::FxBuildHasher>::default();
    for (computation, is_called) in module.computations.iter().zip(module.is_called()) {
        let mut first = |mut range: std::ops::Range<usize>| {
            range.find(|&at| {
                let instruction = &module.instructions[at];
                let opcode = instruction.opcode.of(text);
                let acts = || {
                    let says_so = module.attribute(text, instruction, "custom_call_has_side_effect");
                    opcode == "custom-call" && says_so.is_some_and(|value| value.of(text) == "true")
                };
                !*computes.entry(opcode).or_insert_with(|| doing(opcode) == Doing::Computes) || acts()
            })
        };
        let own = if is_called { first(computation.instructions()).map(|at| at as u32) } else { None };
        hidden.push(own.or_else(|| module.called(computation.body).find_map(|callee| hidden[callee])));
    }
    hidden
}
