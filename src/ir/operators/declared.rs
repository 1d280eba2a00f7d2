//! Operators that users declare, by schemas as PyTorch writes them.

use super::schema::{self, SchemaError};
use indexmap::IndexMap;
use std::sync::Arc;

/// What users say of operators that no table knows.
///
/// A declaration is a schema as PyTorch writes it, such as `mylib::scale_by(Tensor(a!) g, Tensor x) -> Tensor`, and
/// optionally ` tags: ` and PyTorch's tags, such as `nondeterministic_seeded`, or `communicates`. An operator that is
/// declared writes, aliases, draws and communicates only as declared.
///
/// A declaration replaces what the tables know of the same operator and overload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operators {
    /// Schema by target, in the order declared: `mylib.scale_by.default`.
    schemas: Arc<IndexMap<Box<str>, Box<str>>>,
}

/// Why a declaration cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}\n  {text}\nexpected {expected}")]
pub struct DeclareError {
    /// Counted from one.
    pub line: usize,
    /// In characters, counted from one.
    pub column: usize,
    /// The line.
    pub text: String,
    /// What was found.
    pub problem: String,
    /// What was expected.
    pub expected: String,
}

impl Operators {
    /// Reads declarations, one a line. Blank lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    ///
    /// The first line that is not a schema, or that declares an operator twice in different words.
    pub fn parse(text: &str) -> Result<Self, DeclareError> {
        let mut operators = Self::default();
        for (index, line) in text.lines().enumerate() {
            let schema = line.trim();
            if schema.is_empty() || schema.starts_with('#') {
                continue;
            }
            let indent = line.chars().take_while(|c| c.is_whitespace()).count();
            operators.declare(schema).map_err(|error| DeclareError {
                line: index + 1,
                column: error.column + indent,
                text: line.to_owned(),
                ..error
            })?;
        }
        Ok(operators)
    }

    /// Takes one schema.
    ///
    /// # Errors
    ///
    /// If it is not a schema, or the operator is declared already in different words.
    pub fn declare(&mut self, schema: &str) -> Result<(), DeclareError> {
        let fault = |SchemaError { at, expected }: SchemaError| {
            let found = schema.get(at..).and_then(|rest| rest.chars().next());
            DeclareError {
                line: 1,
                column: schema.get(..at).map_or(0, |before| before.chars().count()) + 1,
                text: schema.to_owned(),
                problem: found.map_or_else(|| "the schema ends".to_owned(), |c| format!("found `{c}`")),
                expected: expected.to_owned(),
            }
        };
        let (target, _) = schema::parse(schema).map_err(fault)?;
        let schemas = Arc::make_mut(&mut self.schemas);
        if schemas.get(&*target).is_some_and(|known| **known != *schema) {
            return Err(DeclareError {
                line: 1,
                column: 1,
                text: schema.to_owned(),
                problem: format!("`{target}` is declared twice"),
                expected: "one declaration for each operator and overload".to_owned(),
            });
        }
        schemas.insert(target.into(), schema.into());
        Ok(())
    }

    /// Takes one schema, as the dispatcher of a running PyTorch has it, unless the tables say the same of the operator:
    /// what they know beyond its schema stays known then. Gives whether it was declared.
    ///
    /// # Errors
    ///
    /// As [`Operators::declare`].
    pub fn declare_if_new(&mut self, schema: &str) -> Result<bool, DeclareError> {
        let is_known = schema::parse(schema).is_ok_and(|(target, found)| {
            let row = super::table::overload(&target).map(|row| row.signature());
            row.is_some_and(|row| {
                let says_random = row.flags.random || !found.flags.random;
                row.parameters == found.parameters && row.returns == found.returns && says_random
            })
        });
        if !is_known {
            self.declare(schema)?;
        }
        Ok(!is_known)
    }

    /// Adds the declarations of another set; where both declare an operator, the other's count.
    pub fn extend(&mut self, other: &Self) {
        if !other.is_empty() {
            let schemas = other.schemas.iter().map(|(target, schema)| (target.clone(), schema.clone()));
            Arc::make_mut(&mut self.schemas).extend(schemas);
        }
    }

    /// The schema that was declared for a target (`mylib.scale_by.default`, or `mylib.scale_by` for the default overload).
    #[must_use]
    pub fn schema(&self, target: &str) -> Option<&str> {
        if self.schemas.is_empty() {
            return None;
        }
        let found = self.schemas.get(target).or_else(|| self.schemas.get(&*format!("{target}.default")));
        found.map(|schema| &**schema)
    }

    /// Whether nothing is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.schemas.is_empty()
    }

    /// Targets and their schemas, in the order declared.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.schemas.iter().map(|(target, schema)| (&**target, &**schema))
    }
}
