//! Keys of statements that change a value: `x += y` and `x[i] = v`.

use super::super::lex::HOLE;
use super::super::statement::augmented;
use super::{Parsed, Parser, RightSide, call};

/// Reads a statement that changes a value, up to what binds its name.
pub(in crate::fx) fn parse_change(key: &str) -> Parsed<RightSide> {
    let mut parser = Parser { text: key, at: 0, operands: 0, depth: 0 };
    let change = parser.change()?;
    parser.end()?;
    Ok(change)
}

impl Parser<'_> {
    fn change(&mut self) -> Parsed<RightSide> {
        if self.peek() != Some(HOLE) {
            let word = self.dotted()?;
            return Err(self.undefined(0, word).unwrap_or(super::KeyFault {
                at: 0,
                expected: "a value to change".into(),
                undefined: None,
            }));
        }
        let value = self.hole();
        let mut args = vec![value];
        let target = if self.peek() == Some(b'[') {
            args = self.subscript(args.swap_remove(0))?.args.positional;
            self.space();
            self.expect("=")?;
            "operator.setitem".to_owned()
        } else {
            self.space();
            let Some((sign, name)) = augmented(&self.text[self.at..]) else {
                return self.fail("an assignment such as `+=`");
            };
            self.at += sign.len();
            format!("operator.{name}")
        };
        self.space();
        args.push(self.value()?);
        Ok(call(target, args))
    }
}
