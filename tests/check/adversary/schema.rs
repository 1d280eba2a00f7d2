//! Operators of PyTorch as their schemas say, read for these tests alone, and calls made of them.

/// An argument of a schema.
#[derive(Clone, Debug)]
pub struct Parameter {
    pub name: String,
    /// The type without its alias mark: `Tensor[]`, `SymInt?`.
    pub ty: String,
    /// `a`, `a!`, `a -> *`; empty for none.
    pub mark: String,
    pub by_name: bool,
    pub default: Option<String>,
}

/// One overload.
#[derive(Clone, Debug)]
pub struct Schema {
    /// As graphs have it: `aten.add_.Tensor`.
    pub target: String,
    pub parameters: Vec<Parameter>,
    pub draws: bool,
    /// Whether a tensor that it gives back is marked as a view.
    pub makes_view: bool,
}

impl Schema {
    pub fn writes(&self) -> bool {
        self.parameters.iter().any(|parameter| parameter.mark.contains('!'))
    }

    /// The place of the argument that its result may be a view of.
    pub fn viewed(&self) -> Option<usize> {
        self.parameters.iter().position(|parameter| !parameter.mark.is_empty() && !parameter.mark.contains('!'))
    }
}

/// All overloads that the file has.
pub fn schemas() -> Vec<Schema> {
    let path = kit::root().join("src/check/schemas/torch.txt");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).filter_map(schema).collect()
}

fn schema(line: &str) -> Option<Schema> {
    let (schema, tags) = line.split_once('\t').unwrap_or((line, ""));
    let open = schema.find('(')?;
    let close = schema.find(") -> ")?;
    let (namespace, name) = schema[..open].split_once("::")?;
    let target = if name.contains('.') { format!("{namespace}.{name}") } else { format!("{namespace}.{name}.default") };
    let mut by_name = false;
    let mut parameters = Vec::new();
    for part in split(&schema[open + 1..close]) {
        if part == "*" {
            by_name = true;
            continue;
        }
        parameters.push(parameter(part, by_name)?);
    }
    let makes_view = schema[close..].contains("Tensor(");
    Some(Schema { target, parameters, draws: tags.contains("nondeterministic_seeded"), makes_view })
}

/// At commas that stand in no bracket.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn parameter(text: &str, by_name: bool) -> Option<Parameter> {
    let (text, default) = match text.split_once('=') {
        Some((text, default)) => (text, Some(default.to_owned())),
        None => (text, None),
    };
    let (mut ty, mut mark) = (String::new(), String::new());
    let place = text.rfind(' ')?;
    let (written, name) = (text[..place].trim(), text[place + 1..].to_owned());
    match (written.find('('), written.find(')')) {
        (Some(open), Some(close)) => {
            ty.push_str(&written[..open]);
            mark.push_str(&written[open + 1..close]);
            ty.push_str(&written[close + 1..]);
        }
        _ => ty.push_str(written),
    }
    // `int[2]` is `int[]` of that length.
    if let (Some(open), Some(close)) = (ty.find('['), ty.find(']')) {
        ty.replace_range(open + 1..close, "");
    }
    Some(Parameter { name, ty, mark, by_name, default })
}

/// Two values for an argument that no call may take for each other; `None` for a type of which none is known.
pub fn values(parameter: &Parameter, tensor: &str, other: &str) -> Option<(String, String)> {
    let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
    match parameter.ty.trim_end_matches('?') {
        "Tensor" => pair(tensor, other),
        "Tensor[]" => Some((format!("[{tensor}, {other}]"), format!("[{other}, {tensor}]"))),
        "int" | "SymInt" => pair("0", "1"),
        "int[]" | "SymInt[]" => pair("[0, 1]", "[1, 0]"),
        "Scalar" => pair("2", "3"),
        "Scalar[]" => pair("[2, 3]", "[3, 2]"),
        "float" => pair("0.5", "0.25"),
        "float[]" => pair("[0.5]", "[0.25]"),
        "bool" => pair("False", "True"),
        "str" | "Any" => pair("'one'", "'two'"),
        "ScalarType" => pair("f64", "i32"),
        "Layout" => pair("torch.strided", "torch.sparse_coo"),
        "Device" => pair("@device(type='cpu')", "@device(type='cuda')"),
        "MemoryFormat" => pair("torch.contiguous_format", "torch.channels_last"),
        _ => None,
    }
}
