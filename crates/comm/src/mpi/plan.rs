//! What one rank sends, receives and reduces for a call.
//!
//! In two exchanges, with reductions in between. An all-reduce gives part r of every input to rank r, which reduces them
//! in rank order; then everyone gets all parts. So each rank sends and receives `2 (n - 1) / n` times its data, as in a
//! ring. A reduce does the same, but only the root gets the parts. A reduce-scatter ends after the first exchange.
//! Gathers, broadcasts and all-to-alls have only one, straight from who has the data to who wants them.
//!
//! A reduction needs memory for the parts of the others: as much as one input.

use super::span::{Hold, Span, Spans, Sum};
use crate::buffer::{Arena, BufferError};
use crate::call::{Call, Op, Reduction};
use crate::signature::Described;
use bucketeer_types::DType;
use std::sync::Arc;

/// A range that goes to another rank, or comes from there. Between two ranks, both list what goes from one to the other
/// in the same order.
pub struct Move {
    /// Place in the group.
    pub peer: usize,
    pub span: Span,
    pub receives: bool,
}

#[derive(Default)]
pub struct Plan {
    /// Done first.
    pub copies: Vec<(Span, Span)>,
    pub first: Vec<Move>,
    /// Done after all of `first`.
    pub sums: Vec<Sum>,
    /// Done after all of `sums`.
    pub second: Vec<Move>,
}

/// Who plans.
#[derive(Clone, Copy)]
struct Member {
    place: usize,
    size: usize,
}

/// Plans the calls of a member; all members call the same.
///
/// # Errors
/// [`BufferError::Memory`], if there is none for the parts of the others.
pub fn plan(
    calls: &[Call],
    spans: Vec<Spans>,
    hold: &Arc<Hold>,
    place: usize,
    size: usize,
) -> Result<Plan, BufferError> {
    let mut plan = Plan::default();
    let member = Member { place, size };
    for (call, spans) in calls.iter().zip(spans) {
        plan.add(call, spans, hold, member)?;
    }
    Ok(plan)
}

/// Where each of `parts` parts of a buffer begins and ends, in bytes: whole elements, as equal as can be.
fn cut(bytes: u64, parts: usize, dtype: DType) -> Vec<(u64, u64)> {
    let (width, parts) = (dtype.bytes(), parts as u64);
    let (each, rest) = (bytes / width / parts, bytes / width % parts);
    let start = |part: u64| (part * each + part.min(rest)) * width;
    (0..parts).map(|part| (start(part), start(part + 1))).collect()
}

/// Parts of these lengths, end to end.
fn end_to_end(lengths: &[u64]) -> Vec<(u64, u64)> {
    let mut end = 0;
    let next = |length: &u64| {
        end += length;
        (end - length, end)
    };
    lengths.iter().map(next).collect()
}

fn part(span: &Span, (start, end): (u64, u64)) -> Result<Span, BufferError> {
    span.part(start, end - start)
}

impl Plan {
    fn add(&mut self, call: &Call, spans: Spans, hold: &Arc<Hold>, member: Member) -> Result<(), BufferError> {
        let (input, output) = match (spans.input, spans.output) {
            (Some(input), Some(output)) => (input, output),
            (input, output) => return self.add_one_sided(call, input, output, member),
        };
        let Member { place, size } = member;
        match call.op() {
            Op::AllReduce(op) => {
                let parts = cut(input.bytes(), size, call.dtype());
                self.scatter(&input, &parts, part(&output, parts[place])?, (*op, call.dtype()), hold, member)?;
                let own = part(&output, parts[place])?;
                for peer in member.peers() {
                    push(&mut self.second, peer, own.clone(), false);
                    push(&mut self.second, peer, part(&output, parts[peer])?, true);
                }
            }
            Op::ReduceScatter(op) => {
                let parts = end_to_end(&vec![output.bytes(); size]);
                self.scatter(&input, &parts, output, (*op, call.dtype()), hold, member)?;
            }
            Op::Reduce { op, root } => {
                let root = root.0 as usize;
                let parts = cut(input.bytes(), size, call.dtype());
                if place == root {
                    self.scatter(&input, &parts, part(&output, parts[place])?, (*op, call.dtype()), hold, member)?;
                    for peer in member.peers() {
                        push(&mut self.second, peer, part(&output, parts[peer])?, true);
                    }
                } else {
                    let (start, end) = parts[place];
                    let sum = scratch(hold, end - start)?;
                    push(&mut self.second, root, sum.clone(), false);
                    self.scatter(&input, &parts, sum, (*op, call.dtype()), hold, member)?;
                    self.copies.push((input, output));
                }
            }
            Op::AllGather => {
                let slots = end_to_end(&vec![input.bytes(); size]);
                self.copies.push((input.clone(), part(&output, slots[place])?));
                for peer in member.peers() {
                    push(&mut self.first, peer, input.clone(), false);
                    push(&mut self.first, peer, part(&output, slots[peer])?, true);
                }
            }
            Op::Broadcast { .. } => {
                for peer in member.peers() {
                    push(&mut self.first, peer, input.clone(), false);
                }
                self.copies.push((input, output));
            }
            Op::AllToAll { .. } => {
                let (send, receive) = call.split_bytes(size);
                let (send, receive) = (end_to_end(&send), end_to_end(&receive));
                self.copies.push((part(&input, send[place])?, part(&output, receive[place])?));
                for peer in member.peers() {
                    push(&mut self.first, peer, part(&input, send[peer])?, false);
                    push(&mut self.first, peer, part(&output, receive[peer])?, true);
                }
            }
            Op::Send { .. } | Op::Recv { .. } | Op::Barrier => {}
        }
        Ok(())
    }

    /// Sends, receives, broadcasts from others, and barriers.
    fn add_one_sided(
        &mut self,
        call: &Call,
        input: Option<Span>,
        output: Option<Span>,
        member: Member,
    ) -> Result<(), BufferError> {
        let root = call.op().root().map(|root| root.0 as usize);
        let peer = call.op().peer().map(|peer| peer.0 as usize).or(root).unwrap_or(member.place);
        if let Some(input) = input {
            push(&mut self.first, peer, input, false);
        }
        if let Some(output) = output {
            push(&mut self.first, peer, output, true);
        }
        Ok(())
    }

    /// Gives part r of the input to rank r, and reduces this rank's parts to `sum`.
    fn scatter(
        &mut self,
        input: &Span,
        parts: &[(u64, u64)],
        sum: Span,
        (reduction, dtype): (Reduction, DType),
        hold: &Arc<Hold>,
        member: Member,
    ) -> Result<(), BufferError> {
        let bytes = sum.bytes();
        let others = scratch(hold, bytes.saturating_mul(member.size as u64 - 1))?;
        let mut inputs = Vec::with_capacity(member.size);
        for (from, own) in parts.iter().enumerate() {
            inputs.push(match from {
                _ if from == member.place => part(input, *own)?,
                _ => others.part((from - usize::from(from > member.place)) as u64 * bytes, bytes)?,
            });
        }
        for peer in member.peers() {
            push(&mut self.first, peer, part(input, parts[peer])?, false);
            push(&mut self.first, peer, inputs[peer].clone(), true);
        }
        if bytes > 0 {
            self.sums.push(Sum { reduction, dtype, inputs, output: sum });
        }
        Ok(())
    }
}

impl Member {
    /// The others, each rank from another one on, so that not all send to the same at once.
    fn peers(self) -> impl Iterator<Item = usize> {
        (1..self.size).map(move |step| (self.place + step) % self.size)
    }
}

fn scratch(hold: &Arc<Hold>, bytes: u64) -> Result<Span, BufferError> {
    Span::scratch(hold, &Arena::new(bytes)?, bytes)
}

fn push(moves: &mut Vec<Move>, peer: usize, span: Span, receives: bool) {
    if span.bytes() > 0 {
        moves.push(Move { peer, span, receives });
    }
}
