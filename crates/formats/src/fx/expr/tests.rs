//! Each form of right side and argument, and each fault.

use super::*;

fn right(key: &str) -> RightSide {
    parse_right_side(&key.replace('%', "\x01")).unwrap()
}

fn shown(key: &str) -> String {
    let RightSide { target, args } = right(key);
    let mut text = format!("{target}: ");
    args.write(&mut text, bucketeer::ir::Spacing::Wide, &|index| format!("%{index}")).unwrap();
    text
}

#[test]
fn every_form_of_right_side_is_a_call() {
    for (key, expected) in [
        ("torch.ops.aten.mm.default(%, %)", "aten.mm.default: %0, %1"),
        ("torch.sym_max(%, 1)", "torch.sym_max: %0, 1"),
        ("math_trunc(%)", "math_trunc: %0"),
        ("%", "alias: %0"),
        ("%[3]", "operator.getitem: %0, 3"),
        ("%[-1]", "operator.getitem: %0, -1"),
        ("%[1:%]", "operator.getitem: %0, slice(1, %1, None)"),
        ("%[:, ::2, 0]", "operator.getitem: %0, (slice(None, None, None), slice(None, None, 2), 0)"),
        ("%[(slice(None, None, None), 0)]", "operator.getitem: %0, (slice(None, None, None), 0)"),
        ("% + 8", "operator.add: %0, 8"),
        ("2048 * %", "operator.mul: 2048, %0"),
        ("% // 8", "operator.floordiv: %0, 8"),
        ("% ** 2", "operator.pow: %0, 2"),
        ("% / -2", "operator.truediv: %0, -2"),
        ("% <= %", "operator.le: %0, %1"),
        ("% != 0", "operator.ne: %0, 0"),
        ("-%", "operator.neg: %0"),
        ("not %", "operator.not_: %0"),
        ("self.weight", "self.weight: "),
        ("self.a.b(%)", "self.a.b: %0"),
        ("self.a()", "self.a.__call__: "),
        ("getattr(self.layers, \"0\").weight", "self.layers.0.weight: "),
        ("getattr(self, \"0\")(%)", "self.0: %0"),
        ("getattr(getattr(self.a, \"0\").b, \"1\").c", "self.a.0.b.1.c: "),
        ("getattr(%, \"0\")", "getattr: %0, '0'"),
        ("%.view(1, -1)", "method.view: %0, 1, -1"),
        ("%.shape", "getattr.shape: %0"),
    ] {
        assert_eq!(shown(key), expected, "{key}");
    }
}

#[test]
fn every_kind_of_argument_is_read() {
    for (arguments, expected) in [
        ("1, -2, 1e-05, -1.0, 0.5, 3j", None),
        ("True, False, None, inf, -inf, nan, torch.strided", None),
        ("'avg', \"it's\", 'a\\'b'", None),
        ("torch.bfloat16, torch.contiguous_format", None),
        ("[], (), [1, [%0, None]], (%1,), (%2, 3)", None),
        ("dtype = torch.int64, device = device(type='cuda', index=0), out = [%0, %1]", None),
        ("{'a': %, 'b': 1}", Some("dict(a=%0, b=1)")),
        ("{1: %}", Some("dict([(1, %0)])")),
        ("<function f at 0x7f>, (%)", Some("<function f at 0x7f>, %0")),
        ("[1,\n  2,  # two\n  ], ...", Some("[1, 2], ...")),
        ("torch.half", Some("torch.float16")),
    ] {
        let holes: String = arguments.split('%').enumerate().fold(String::new(), |text, (index, part)| {
            let digit = index > 0 && part.starts_with(|c: char| c.is_ascii_digit());
            text + if index > 0 { "%" } else { "" } + if digit { &part[1..] } else { part }
        });
        let expected = format!("f.g: {}", expected.unwrap_or(arguments));
        assert_eq!(shown(&format!("f.g({holes})")), expected);
    }
}

#[test]
fn faulty_right_sides_are_errors() {
    for (key, at, expected) in [
        ("", 0, "an expression"),
        ("5", 1, "an operator such as `+`, a call, or a subscript"),
        ("% %", 2, "an operator such as `+`, a call, or a subscript"),
        ("% + % + %", 6, "the end of the statement"),
        ("f.g(9223372036854775808)", 4, "an integer that fits in 64 bits"),
        ("f.g(1 2)", 6, "`,` or `)`"),
        ("f.g([1 2])", 7, "`,` or `]`"),
        ("f.g(1..2)", 4, "a number"),
        ("f.g(k = 1, 2)", 11, "a keyword argument, for those without a keyword come first"),
        ("f.g(x)", 4, "a name that is defined before this line"),
        ("y + 1", 0, "a name that is defined before this line"),
        ("f.g(%.shape)", 5, "a plain value"),
        ("f.g(1)[0]", 6, "the end of the statement"),
        ("f.g(*%)", 4, "a value"),
        ("%[]", 2, "a value"),
        ("torch.ops..mm(%)", 0, "a name"),
        ("f.g(torch.)", 4, "a name"),
        ("getattr(self., \"0\")", 8, "a name"),
        ("getattr(self.a, \"0.1\")", 16, "an attribute's name in quotes"),
    ] {
        let fault = parse_right_side(&key.replace('%', "\x01")).unwrap_err();
        assert_eq!((fault.at, fault.expected.as_str()), (at, expected), "{key}");
    }
}

#[test]
fn deep_nesting_is_an_error() {
    let fault = |open: &str| parse_right_side(&format!("f.g({}", open.repeat(100_000))).unwrap_err().expected;
    for open in ["[", "(", "{", "{1: ", "f(", "f(k="] {
        assert_eq!(fault(open), "at most 200 nested brackets", "{open}");
    }
}

#[test]
fn complex_numbers_are_read_as_python_prints_them() {
    for number in ["(3+4.5j)", "(-0.5-1j)", "(1e-05+2e+16j)", "4.5j", "(0-1e-07j)"] {
        let key = format!("torch.ops.aten.add.Tensor(%, {number})");
        assert_eq!(shown(&key), format!("aten.add.Tensor: %0, {number}"));
        assert_eq!(shown(&format!("torch.ops.f.g([{number}, 2])")), format!("f.g: [{number}, 2]"));
    }
    for fault in ["(3+j)", "(3+4j", "(3+4)", "(e+4j)"] {
        let key = format!("torch.ops.f.g({fault})");
        assert!(parse_right_side(&key).is_err(), "{fault}");
    }
}
