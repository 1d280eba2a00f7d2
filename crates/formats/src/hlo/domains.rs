//! Sharding domains: parts of a computation that `domain` instructions keep apart.
//!
//! Two collectives may travel together only in domains of equal metadata. What stands above a `domain` instruction is in
//! the domain of its `exit`, what stands below in that of its `entry`.

use super::attributes::entry;
use super::module::{Computation, Module};

/// The metadata of each instruction's domain, by its place in the computation; empty where no domain says. `None` if
/// the computation has no domains.
pub(super) fn of<'t>(text: &'t str, module: &Module, computation: &Computation) -> Option<Vec<&'t str>> {
    if !computation.opcodes.domain {
        return None;
    }
    let range = computation.instructions();
    let instructions = &module.instructions[range.clone()];
    let is_domain = |index: usize| instructions[index].opcode.of(text) == "domain";
    let mut part: Vec<usize> = (0..instructions.len()).collect();
    let operands = |index: usize| module.operands(&instructions[index]).iter().map(|o| o.target as usize - range.start);
    for index in (0..instructions.len()).filter(|&index| !is_domain(index)) {
        for operand in operands(index).filter(|&operand| !is_domain(operand)) {
            let (a, b) = (find(&mut part, operand), find(&mut part, index));
            part[a.max(b)] = a.min(b);
        }
    }
    let mut metadata = vec![""; instructions.len()];
    for index in 0..instructions.len() {
        let say = |index: usize, key: &str| {
            let value = module.attribute(text, &instructions[index], "domain").map_or("", |value| value.of(text));
            entry(value, key).unwrap_or("")
        };
        for operand in operands(index) {
            if is_domain(index) && !is_domain(operand) {
                metadata[find(&mut part, operand)] = say(index, "exit");
            } else if !is_domain(index) && is_domain(operand) {
                metadata[find(&mut part, index)] = say(operand, "entry");
            }
        }
    }
    Some((0..instructions.len()).map(|index| metadata[find(&mut part, index)]).collect())
}

fn find(part: &mut [usize], mut at: usize) -> usize {
    while part[at] != at {
        part[at] = part[part[at]];
        at = part[at];
    }
    at
}
