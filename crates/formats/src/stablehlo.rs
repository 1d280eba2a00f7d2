//! StableHLO in MLIR's text form, plain or generic, as `lowered.as_text()` prints it: read to list its collectives, not to be rewritten.
//!
//! The text is walked once. Strings and comments count as such; of each collective the brackets behind its name are taken: operands,
//! properties, a region that reduces, attributes, and the function type, from which come dtype and bytes. All else is passed
//! over, so dialects and attributes that nobody has heard of do no harm.

use bucketeer::ir::DType;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::ops::Range;

/// Most devices that groups by axes are written out for.
const MOST_LISTED: usize = 256;

/// Most nested brackets.
const MOST_NESTED: usize = 256;

/// A collective of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StableCollective {
    /// The name of its result, with its sign: `%55`.
    pub name: String,
    /// `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `collective_permute` or `collective_broadcast`.
    pub kind: &'static str,
    /// The operation of a reduction, if it is one: `add`.
    pub reduction: Option<String>,
    /// The function that it stands in, without its sign: `main`.
    pub function: String,
    /// Line, from 1.
    pub line: usize,
    /// Its replica groups or pairs as they are written: `[[0, 1], [2, 3]]`; empty if it states none.
    pub groups: String,
    /// Ranks of its first group, if they are listed.
    pub group_size: Option<u64>,
    /// Element type of its first operand, if it is one of ours.
    pub dtype: Option<DType>,
    /// The larger of what goes in and what comes out; `None` where a size is dynamic or a type unknown.
    pub bytes: Option<u64>,
}

/// Why a text cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct StableHloError {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What was found, and what was expected.
    pub what: String,
}

const KINDS: [&str; 6] =
    ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", "collective_broadcast"];

/// Whether bytes look like a module of StableHLO.
#[must_use]
pub fn is_stablehlo(bytes: &[u8]) -> bool {
    let has = |words: &str| memchr::memmem::find(bytes, words.as_bytes()).is_some();
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with(b"//") && !line.starts_with(b"#"));
    // The generic form has operators in quotes.
    let begins = [&b"module"[..], b"func.func", b"\"builtin.module\"", b"\"func.func\""];
    first.is_some_and(|line| begins.iter().any(|word| line.starts_with(word)))
        && (has("stablehlo.") || has("func.func"))
}

/// The collectives of a module, in the order of its text.
///
/// # Errors
/// [`StableHloError`] at the first string or bracket that is not closed, or collective that is cut short.
pub fn collectives(text: &str) -> Result<Vec<StableCollective>, StableHloError> {
    let (function, meshes) = (String::new(), HashMap::default());
    let mut reader = Reader { text, at: 0, line: 1, counted: 0, function, meshes };
    let mut found = Vec::new();
    while let Some(token) = reader.token().map_err(|fault| fault.in_text(text))? {
        match token {
            Token::Word("func.func") => reader.function_follows(),
            Token::Word("sdy.mesh") => reader.mesh_follows(),
            Token::Text("func.func") => {
                let properties = reader.generic_properties().map_err(|fault| fault.in_text(text))?;
                properties.and_then(symbol).unwrap_or_default().clone_into(&mut reader.function);
            }
            Token::Text("sdy.mesh") => {
                let properties = reader.generic_properties().map_err(|fault| fault.in_text(text))?;
                reader.mesh(properties.and_then(symbol), properties);
            }
            Token::Text(content) => {
                let kind = content.strip_prefix("stablehlo.").and_then(|op| KINDS.into_iter().find(|kind| *kind == op));
                if let Some(kind) = kind {
                    found.push(reader.collective(kind).map_err(|fault| fault.in_text(text))?);
                }
            }
            Token::Word(_) | Token::Open | Token::Other => {}
        }
    }
    Ok(found)
}

struct Fault {
    at: usize,
    what: String,
}

impl Fault {
    fn in_text(self, text: &str) -> StableHloError {
        let before = &text[..self.at.min(text.len())];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        StableHloError { line, column: before[start..].chars().count() + 1, what: self.what }
    }
}

enum Token<'a> {
    /// What stands between quotes.
    Text(&'a str),
    /// Letters, digits, dots and underscores.
    Word(&'a str),
    /// A bracket that opens; `<` is none, since `->` and shifts are written with it.
    Open,
    Other,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// The line of `counted`.
    line: usize,
    counted: usize,
    function: String,
    /// Meshes by name, as HLO text writes them: `mesh['x'=2,'y'=4]`.
    meshes: HashMap<&'a str, String, FxBuildHasher>,
}

impl<'a> Reader<'a> {
    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    fn fault<T>(&self, at: usize, what: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { at, what: what.into() })
    }

    fn skip_blanks(&mut self) {
        loop {
            while self.bytes().get(self.at).is_some_and(u8::is_ascii_whitespace) {
                self.at += 1;
            }
            if !self.bytes()[self.at..].starts_with(b"//") {
                return;
            }
            let rest = &self.bytes()[self.at..];
            self.at += memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        }
    }

    /// The next token; none at the end.
    fn token(&mut self) -> Result<Option<Token<'a>>, Fault> {
        self.skip_blanks();
        let start = self.at;
        let Some(&first) = self.bytes().get(start) else { return Ok(None) };
        self.at += 1;
        if first == b'"' {
            loop {
                match self.bytes().get(self.at) {
                    None => return self.fault(start, "this string has no end; expected `\"`"),
                    Some(b'"') => break,
                    Some(b'\\') => self.at += 2,
                    Some(_) => self.at += 1,
                }
            }
            self.at += 1;
            // Quotes are single bytes, so what stands between them is whole.
            return Ok(Some(Token::Text(self.text.get(start + 1..self.at - 1).unwrap_or_default())));
        }
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        if is_word(first) {
            while self.bytes().get(self.at).copied().is_some_and(is_word) {
                self.at += 1;
            }
            return Ok(Some(Token::Word(&self.text[start..self.at])));
        }
        Ok(Some(if matches!(first, b'(' | b'[' | b'{') { Token::Open } else { Token::Other }))
    }

    /// Notes the name of a function: the first word behind `@`.
    fn function_follows(&mut self) {
        let rest = &self.text[self.at..];
        let line = rest.split('\n').next().unwrap_or(rest);
        if let Some((_, name)) = line.split_once('@') {
            let end = name.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '$' | '-')));
            self.function = name[..end.unwrap_or(name.len())].to_owned();
        }
    }

    /// Notes a mesh: `@mesh = <["x"=2, "y"=4]>`.
    fn mesh_follows(&mut self) {
        let rest = self.text[self.at..].trim_start();
        let line = rest.split('\n').next().unwrap_or(rest);
        let found = line.strip_prefix('@').and_then(|line| line.split_once('='));
        if let Some((name, mesh)) = found {
            self.mesh(Some(name.trim().trim_matches('"')), Some(mesh));
        }
    }

    /// Notes the axes of a mesh, and its devices where they are listed.
    fn mesh(&mut self, name: Option<&'a str>, text: Option<&'a str>) {
        let (Some(name), Some((_, text))) = (name, text.and_then(|text| text.split_once("<["))) else { return };
        let Some((axes, rest)) = text.split_once(']') else { return };
        let devices = rest.split('>').next().and_then(|rest| rest.split_once("device_ids")).and_then(|(_, list)| {
            let list = list.split_once('[')?.1.split(']').next()?;
            Some(format!(", device_ids=({})", list.replace(' ', "")))
        });
        let axes = axes.replace('"', "'").replace(' ', "");
        self.meshes.insert(name, format!("mesh[{axes}]{}", devices.unwrap_or_default()));
    }

    /// The properties of an operator in the generic form, behind its name and operands; none where it has none.
    fn generic_properties(&mut self) -> Result<Option<&'a str>, Fault> {
        if self.next_is("(") {
            self.bracket(b'(', "operands")?;
        }
        if !self.next_is("<{") {
            return Ok(None);
        }
        self.at += 1;
        let range = self.bracket(b'{', "properties")?;
        Ok(Some(&self.text[range]))
    }

    /// The groups that axes of a mesh stand for: as lists where they are short, and how many ranks the first has.
    fn axes(&self, properties: &str) -> Option<(String, Option<u64>)> {
        let (_, value) = properties.split_once("replica_group_mesh_axes<")?;
        let name = value.split_once('@')?.1;
        let name = &name[..name.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '$' | '-')))?];
        let (_, list) = value.split_once("axes")?;
        let list = list.split_once('[')?.1.split(']').next()?;
        let number = |text: &str, key: &str| {
            let digits = text.split_once(key)?.1.trim_start_matches([' ', '=']);
            digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse::<u64>().ok()
        };
        let axis = |text: &str| {
            let name = text.split('"').nth(1)?;
            match number(text, "pre_size") {
                Some(before) => {
                    let after = text.split_once("pre_size")?.1;
                    Some(format!("'{name}':({before}){}", number(after, " size")?))
                }
                None => Some(format!("'{name}'")),
            }
        };
        let axes: Option<Vec<String>> = list.split("axis_ref<").skip(1).map(axis).collect();
        let text = format!("{} {{{}}}", self.meshes.get(name)?, axes?.join(","));
        let lists = super::hlo::listed_groups(&text)?;
        let size = lists.first().map(|list| list.len() as u64);
        if lists.iter().map(Vec::len).sum::<usize>() > MOST_LISTED {
            return Some((text, size));
        }
        let one = |list: &Vec<u32>| format!("[{}]", list.iter().map(u32::to_string).collect::<Vec<_>>().join(", "));
        Some((format!("[{}]", lists.iter().map(one).collect::<Vec<_>>().join(", ")), size))
    }

    /// The bracket that is next, with all in it.
    fn bracket(&mut self, open: u8, what: &str) -> Result<Range<usize>, Fault> {
        self.skip_blanks();
        let start = self.at;
        if self.bytes().get(start) != Some(&open) {
            return self.fault(start, format!("expected `{}` for the {what} of a collective", char::from(open)));
        }
        let mut closers = Vec::new();
        loop {
            let Some(token) = self.token()? else {
                return self.fault(start, format!("this `{}` is not closed", char::from(open)));
            };
            let byte = self.bytes()[self.at - 1];
            match token {
                Token::Open => {
                    if closers.len() == MOST_NESTED {
                        return self.fault(self.at - 1, format!("more than {MOST_NESTED} nested brackets"));
                    }
                    closers.push(match byte {
                        b'(' => b')',
                        b'[' => b']',
                        _ => b'}',
                    });
                }
                Token::Other => {
                    if matches!(byte, b')' | b']' | b'}') {
                        let expected = closers.pop().unwrap_or(byte);
                        if byte != expected {
                            let found = char::from(byte);
                            return self
                                .fault(self.at - 1, format!("found `{found}`, expected `{}`", char::from(expected)));
                        }
                        if closers.is_empty() {
                            return Ok(start..self.at);
                        }
                    }
                }
                Token::Text(_) | Token::Word(_) => {}
            }
        }
    }

    fn next_is(&mut self, text: &str) -> bool {
        self.skip_blanks();
        self.bytes()[self.at..].starts_with(text.as_bytes())
    }

    /// A collective, behind its name in quotes.
    fn collective(&mut self, kind: &'static str) -> Result<StableCollective, Fault> {
        let head = self.at;
        self.bracket(b'(', "operands")?;
        let (mut properties, mut region) = ("", "");
        if self.next_is("<{") {
            self.at += 1;
            let range = self.bracket(b'{', "properties")?;
            properties = &self.text[range];
            self.at += usize::from(self.next_is(">"));
        }
        if self.next_is("(") {
            let range = self.bracket(b'(', "region")?;
            region = &self.text[range];
        }
        if self.next_is("{") {
            let range = self.bracket(b'{', "attributes")?;
            properties = if properties.is_empty() { &self.text[range] } else { properties };
        }
        if !self.next_is(":") {
            return self.fault(self.at, format!("expected `:` and the type of this {kind}"));
        }
        self.at += 1;
        let inputs = self.bracket(b'(', "operand types")?;
        if !self.next_is("->") {
            return self.fault(self.at, format!("expected `->` and the result type of this {kind}"));
        }
        self.at += 2;
        let outputs = if self.next_is("(") {
            self.bracket(b'(', "result types")?
        } else {
            let start = self.at;
            let rest = &self.bytes()[start..];
            start..start + memchr::memchr(b'\n', rest).unwrap_or(rest.len())
        };
        self.at = outputs.end;
        let (inputs, outputs) = (tensors(&self.text[inputs]), tensors(&self.text[outputs]));
        let sum = |list: &[Tensor]| list.iter().try_fold(0u64, |sum, tensor| sum.checked_add(tensor.bytes?));
        let larger = sum(&inputs).zip(sum(&outputs)).map(|(input, output)| input.max(output));
        let groups =
            dense(properties, if kind == "collective_permute" { "source_target_pairs" } else { "replica_groups" });
        let by_axes = if groups.is_empty() { self.axes(properties) } else { None };
        let group_size = match kind {
            _ if by_axes.is_some() => by_axes.as_ref().and_then(|(_, size)| *size),
            "collective_permute" => None,
            _ => first_list(groups).map(|list| list.split(',').filter(|rank| !rank.trim().is_empty()).count() as u64),
        };
        Ok(StableCollective {
            name: self.result_before(head),
            kind,
            reduction: reduction(region).map(str::to_owned),
            function: self.function.clone(),
            line: self.line_of(head),
            groups: by_axes.map_or_else(|| groups.to_owned(), |(groups, _)| groups),
            group_size,
            dtype: inputs.first().and_then(|tensor| tensor.dtype),
            bytes: larger.filter(|_| !inputs.is_empty()),
        })
    }

    /// The name in front of ` = ` on the line of a byte, without a count of results.
    fn result_before(&self, at: usize) -> String {
        let line = &self.text[..at];
        let line = &line[line.rfind('\n').map_or(0, |newline| newline + 1)..];
        let name = line.split_once(" = ").map_or("", |(name, _)| name).trim();
        name.split(':').next().unwrap_or_default().to_owned()
    }

    /// Lines are counted on, so that all of them together take one walk.
    fn line_of(&mut self, at: usize) -> usize {
        self.line += memchr::memchr_iter(b'\n', &self.bytes()[self.counted..at]).count();
        self.counted = at;
        self.line
    }
}

/// The name among properties: `sym_name = "main"`.
fn symbol(properties: &str) -> Option<&str> {
    properties.split_once("sym_name = \"").and_then(|(_, rest)| rest.split('"').next())
}

/// The list of `name = dense<...>`; empty without one.
fn dense<'a>(properties: &'a str, name: &str) -> &'a str {
    let value = properties.split_once(name).map_or("", |(_, rest)| rest.trim_start());
    let value = value.strip_prefix('=').map_or("", str::trim_start);
    let list = value.strip_prefix("dense<").and_then(|rest| rest.split_once('>'));
    list.map_or("", |(list, _)| list)
}

/// What stands in the first innermost brackets.
fn first_list(groups: &str) -> Option<&str> {
    let inner = groups.trim().strip_prefix("[[")?;
    Some(&inner[..inner.find(']')?])
}

/// The first operation of a region that reduces, other than a return.
fn reduction(region: &str) -> Option<&str> {
    let (_, rest) = region.split_once("stablehlo.")?;
    let word = &rest[..rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len())];
    (word != "return").then_some(word)
}

struct Tensor {
    dtype: Option<DType>,
    bytes: Option<u64>,
}

/// The tensor types of a list.
fn tensors(types: &str) -> Vec<Tensor> {
    types.split("tensor<").skip(1).map(|rest| tensor(rest.split(['>', ',']).next().unwrap_or_default())).collect()
}

/// `4x128xf32`
fn tensor(text: &str) -> Tensor {
    let (sizes, element) = match text.find("complex<") {
        Some(at) => text.split_at(at),
        None => text.rsplit_once('x').unwrap_or(("", text)),
    };
    let dtype = match element.trim() {
        "f64" => Some(DType::F64),
        "f32" => Some(DType::F32),
        "f16" => Some(DType::F16),
        "bf16" => Some(DType::Bf16),
        "f8E4M3FN" => Some(DType::F8E4m3fn),
        "f8E5M2" => Some(DType::F8E5m2),
        "f8E4M3FNUZ" => Some(DType::F8E4m3fnuz),
        "f8E5M2FNUZ" => Some(DType::F8E5m2fnuz),
        "i64" => Some(DType::I64),
        "i32" => Some(DType::I32),
        "i16" => Some(DType::I16),
        "i8" => Some(DType::I8),
        "ui64" => Some(DType::U64),
        "ui32" => Some(DType::U32),
        "ui16" => Some(DType::U16),
        "ui8" => Some(DType::U8),
        "i1" => Some(DType::Bool),
        "complex<f32" => Some(DType::C64),
        "complex<f64" => Some(DType::C128),
        _ => None,
    };
    let sizes = sizes.split('x').filter(|size| !size.is_empty());
    let elements = sizes.map(|size| size.trim().parse::<u64>().ok()).try_fold(1u64, |all, size| all.checked_mul(size?));
    Tensor { dtype, bytes: elements.zip(dtype).and_then(|(elements, dtype)| elements.checked_mul(dtype.bytes())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"module @jit_f attributes {mhlo.num_partitions = 8 : i32, note = "all_reduce } ("} {
  func.func public @main(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
    // "stablehlo.all_gather"(%x)
    %3:2 = "stablehlo.all_reduce"(%arg0, %1) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %4 = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<4x8xf32>, tensor<bf16>) -> (tensor<4x8xf32>, tensor<bf16>)
    %5 = "stablehlo.collective_permute"(%arg0) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<?x8xf32>) -> tensor<?x8xf32>
    return %3#0 : tensor<4x8xf32>
  }
}
"#;

    #[test]
    fn collectives_are_listed_with_groups_bytes_and_lines() {
        let found = collectives(TEXT).unwrap();
        assert_eq!(found.len(), 2);
        let expected = StableCollective {
            name: "%3".to_owned(),
            kind: "all_reduce",
            reduction: Some("maximum".to_owned()),
            function: "main".to_owned(),
            line: 4,
            groups: "[[0, 1], [2, 3]]".to_owned(),
            group_size: Some(2),
            dtype: Some(DType::F32),
            bytes: Some(130),
        };
        assert_eq!(found[0], expected);
        assert_eq!((&*found[1].groups, found[1].bytes, found[1].line), ("[[0, 1]]", None, 9));
        assert!(is_stablehlo(TEXT.as_bytes()) && !is_stablehlo(b"HloModule x"));
    }

    #[test]
    fn a_text_that_is_cut_anywhere_is_read_or_refused_with_its_place() {
        for at in 0..TEXT.len() {
            if let Err(error) = collectives(&TEXT[..at]) {
                assert!(error.line >= 1 && error.column >= 1, "{error}");
            }
        }
        let error = collectives(&TEXT[..TEXT.find("^bb0").unwrap()]).unwrap_err();
        assert_eq!((error.line, &*error.what), (4, "this `(` is not closed"));
        let error = collectives("%1 = \"stablehlo.all_reduce\" %2\n").unwrap_err();
        assert_eq!(error.to_string(), "line 1, column 29: expected `(` for the operands of a collective");
        let deep = format!("\"stablehlo.all_reduce\"{}", "(".repeat(100_000));
        assert!(collectives(&deep).unwrap_err().what.contains("nested brackets"));
    }
}
