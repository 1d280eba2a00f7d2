//! Inputs of a run from `.safetensors` files, and outputs as such.

use bucketeer::ir::text::parse;
use bucketeer::ir::{DType, GlobalRank, Graph};
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_eval::{Output, OutputTensor, Scalar};
use bucketeer_exec::{
    Executor, OutputFileError, Reference, Run, TensorFault, TensorFile, check_outputs, output_names, seeded_inputs,
    to_safetensors, world_size,
};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file that goes with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn with(bytes: impl AsRef<[u8]>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tensors-{}-{number}.safetensors", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn open(&self) -> Result<TensorFile, TensorFault> {
        TensorFile::open(&self.0).map_err(|error| {
            assert_eq!(error.file, self.0);
            error.fault
        })
    }

    fn inputs(&self, program: &Program) -> Result<Vec<Output>, String> {
        self.open().unwrap().inputs(program, None).map_err(|error| error.fault.to_string())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file as the format has it, whatever its header says.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn program(graph: &Graph) -> Program {
    lower(graph, &LowerOptions::default()).unwrap().0
}

fn read(text: &str) -> Program {
    program(&parse(text).unwrap())
}

fn tensor(dtype: DType, sizes: &[usize], bytes: &[u8]) -> Output {
    let (device, pending) = (None, false);
    // Strides are not written.
    let strides = vec![1; sizes.len()];
    Output::Tensor(OutputTensor { dtype, sizes: sizes.to_vec(), strides, bytes: bytes.to_vec(), device, pending })
}

/// Dtypes that the format lacks, or counts otherwise.
const UNSUPPORTED: [DType; 3] = [DType::F4E2m1fnX2, DType::C32, DType::C128];

#[test]
fn every_dtype_comes_back_or_is_refused_by_name() {
    for dtype in DType::ALL.iter().copied() {
        let bytes: Vec<u8> =
            (0..3 * dtype.bytes()).map(|at| if dtype == DType::Bool { at as u8 % 2 } else { at as u8 }).collect();
        let value = tensor(dtype, &[3], &bytes);
        let program = read(&format!("x = input {}[3]\noutput(x)", dtype.short_name()));
        let written = to_safetensors(&["x"], std::slice::from_ref(&value));
        if UNSUPPORTED.contains(&dtype) {
            let found = format!("of dtype {}", dtype.short_name());
            let expected = OutputFileError::Unsupported { name: "x".to_owned(), found };
            assert_eq!((written, check_outputs(&program, &["x"])), (Err(expected.clone()), Err(expected)));
            continue;
        }
        check_outputs(&program, &["x"]).unwrap();
        let read = Scratch::with(written.unwrap()).inputs(&program).unwrap();
        assert!(read.len() == 1 && read[0].same_elements(&value), "{dtype:?}: {read:?}");
    }
}

#[test]
fn outputs_that_leave_twice_and_parts_of_tuples_have_names_of_their_own() {
    let graph = parse("a = input f32[2]; b = input f32[2]\noutput(a, b, a)").unwrap();
    assert_eq!(output_names(&graph), ["a", "b", "a"]);
    let of = |byte: u8| tensor(DType::U8, &[1], &[byte]);
    let names = ["a", "a.2", "a", "a", "t", "n"];
    let number = Output::Number(Scalar::Int(-7));
    let outputs = [of(1), of(2), of(3), of(4), Output::Tuple(vec![of(5), of(6)]), number];
    let file = Scratch::with(to_safetensors(&names, &outputs).unwrap()).open().unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["a", "a.2", "a.3", "a.4", "n", "t.0", "t.1"]);
    let mut program = read(
        "a = input u8[1]; b = input u8[1]; c = input u8[1]; d = input u8[1]; n = input i64[]; t = input u8[1]\noutput(a)",
    );
    for (input, name) in program.inputs.iter_mut().zip(["a", "a.2", "a.3", "a.4", "n", "t.1"]) {
        input.name = name.into();
    }
    let values = file.inputs(&program, None).unwrap();
    let expected = [of(1), of(2), of(3), of(4), tensor(DType::I64, &[], &(-7i64).to_le_bytes()), of(6)];
    assert!(values.len() == 6 && values.iter().zip(&expected).all(|(a, b)| a.same_elements(b)), "{values:?}");
    assert_eq!(file.surplus(&program), ["t.0"]);
}

#[test]
fn what_no_file_holds_is_refused_by_name() {
    let refused = |name: &str, output: Output| to_safetensors(&[name], &[output]).unwrap_err().to_string();
    assert_eq!(
        refused("x", Output::Tuple(vec![Output::Opaque(3)])),
        "output `x.0` is of unknown type, which a .safetensors file cannot hold"
    );
    let named = refused("__metadata__", tensor(DType::U8, &[0], &[]));
    assert_eq!(
        named,
        "output `__metadata__` is named as the format's own entry, which a .safetensors file cannot hold"
    );
}

#[test]
fn outputs_of_a_run_are_inputs_of_another() {
    let first = "x = input f32[4]; y = input bf16[3]\ns = all_reduce(x, sum, G:2) : f32[4]; w = wait(s) : f32[4]\n\
                 z = relu(w) : f32[4]\noutput(z, y)";
    let second = "z = input f32[4]; y = input bf16[3]\ng = all_gather(y, G:2) : bf16[6]; w = wait(g) : bf16[6]\n\
                  output(w, z)";
    let (first, second) = (parse(first).unwrap(), parse(second).unwrap());
    let (before, after) = (program(&first), program(&second));
    let all = |program: &Program, inputs: &(dyn Fn(GlobalRank) -> Vec<Output> + Sync)| -> Vec<Run> {
        let ranks = run(world_size(program).unwrap(), LocalOptions::default(), |rank| {
            Executor::new(program, &rank)?.run(&inputs(rank.rank()), &mut Reference::new(rank.rank(), 0))
        });
        ranks.unwrap().into_iter().map(|rank| rank.unwrap().unwrap()).collect()
    };
    let made = all(&before, &|rank| seeded_inputs(&before, rank, 0).unwrap());
    let names = output_names(&first);
    assert_eq!(names, ["z", "y"]);
    let files: Vec<Scratch> =
        made.iter().map(|run| Scratch::with(to_safetensors(&names, &run.outputs).unwrap())).collect();
    let fed = all(&after, &|rank| files[rank.0 as usize].inputs(&after).unwrap());
    for run in &fed {
        let Output::Tensor(gathered) = &run.outputs[0] else { panic!("{:?}", run.outputs) };
        let of = |rank: usize| match &made[rank].outputs[1] {
            Output::Tensor(tensor) => tensor.bytes.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(gathered.bytes, [of(0), of(1)].concat());
        assert!(run.outputs[1].same_elements(&made[0].outputs[0]));
    }
}

#[test]
fn tensors_that_do_not_fit_are_named_with_what_was_found_and_expected() {
    let file = Scratch::with(to_safetensors(&["x"], &[tensor(DType::F32, &[2, 1], &[0; 8])]).unwrap());
    assert!(file.inputs(&read("x = input f32[2, 1]\noutput(x)")).is_ok());
    for (ty, expected) in [
        ("f32[2]", "tensor `x`: found f32[2, 1], expected f32[2]"),
        ("i32[2, 1]", "tensor `x`: found f32[2, 1], expected i32[2, 1]"),
        ("f32[3, 1]", "tensor `x`: found f32[2, 1], expected f32[3, 1]"),
    ] {
        assert_eq!(file.inputs(&read(&format!("x = input {ty}\noutput(x)"))).unwrap_err(), expected);
    }
    let more = read("x = input f32[2, 1]; y = input f32[1]; z = input u8[2]\noutput(x, y, z)");
    assert_eq!(file.inputs(&more).unwrap_err(), "it lacks tensors `y`, `z`");
    let seeded = seeded_inputs(&more, GlobalRank(1), 5).unwrap();
    let filled = file.open().unwrap().inputs(&more, Some((GlobalRank(1), 5))).unwrap();
    assert_eq!(filled[1..], seeded[1..]);
    assert!(filled[0].same_elements(&tensor(DType::F32, &[2, 1], &[0; 8])));
}

#[test]
fn integers_that_a_program_was_made_for_may_be_given_and_then_agree() {
    let program = read("hint n = 6\nn = input Sym(n); x = input f32[n]\noutput(x)");
    let x = tensor(DType::F32, &[6], &[0; 24]);
    let with = |value: i64| {
        let number = Output::Number(Scalar::Int(value));
        Scratch::with(to_safetensors(&["n", "x"], &[number, x.clone()]).unwrap()).inputs(&program)
    };
    assert_eq!(with(6).unwrap()[0], Output::Number(Scalar::Int(6)));
    assert_eq!(with(7).unwrap_err(), "tensor `n`: found 7, expected 6, which the program was made for");
    let without = Scratch::with(to_safetensors(&["x"], std::slice::from_ref(&x)).unwrap());
    assert_eq!(without.inputs(&program).unwrap()[0], Output::Number(Scalar::Int(6)));
}

#[test]
fn headers_that_lie_are_refused_with_the_tensor_and_the_place() {
    let x = |dtype: &str, shape: &str, offsets: &str| {
        format!("{{\"x\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}")
    };
    let y = "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":";
    let two = |of_y: &str| x("U8", "[2]", "[0,2]").replace("}}", &format!("}},{y}{of_y}}}}}"));
    let huge = "18446744073709551615";
    for (header, data, expected) in [
        (x("F32", "[2]", "[0,8]"), 7, "tensor `x`: found 7 of its bytes, expected 8"),
        (x("F32", "[2]", "[0,8]"), 9, "found 9 bytes of tensors, expected the 8 that its header tells of"),
        (x("F32", "[3]", "[0,8]"), 8, "tensor `x`: found bytes 0 to 8, expected 12 bytes for f32[3]"),
        (
            x("F32", "[2]", "[8,0]"),
            8,
            "tensor `x`: found bytes 8 to 0, expected a start at 0, where the tensor before it ends",
        ),
        (
            x("U8", "[2]", "[1,3]"),
            3,
            "tensor `x`: found bytes 1 to 3, expected a start at 0, where the tensor before it ends",
        ),
        (x("F4", "[3]", "[0,2]"), 2, "tensor `x`: found bytes 0 to 2, expected a size for F4[3]"),
        (x("U8", &format!("[{huge},{huge}]"), "[0,8]"), 8, "expected a size for u8"),
        (x("U8", &format!("[{huge}]"), &format!("[0,{huge}]")), 8, "expected a size for u8"),
        (
            x("U8", "[2305843009213693951]", "[0,2305843009213693951]"),
            8,
            "found 8 of its bytes, expected 2305843009213693951",
        ),
        (x("U9", "[2]", "[0,2]"), 2, "tensor `x`: unknown variant `U9`"),
        (x("U8", "[-2]", "[0,2]"), 2, "tensor `x`: invalid value"),
        (two("[1,3]"), 3, "tensor `y`: found bytes 1 to 3, expected a start at 2, where the tensor before it ends"),
        (two("[3,5]"), 5, "tensor `y`: found bytes 3 to 5, expected a start at 2, where the tensor before it ends"),
        (two("[2,4]").replace("\"y\"", "\"x\""), 4, "tensor `x`: it is there twice"),
        ("[]".to_owned(), 0, "expected JSON of tensors"),
        ("{".to_owned(), 0, "expected JSON of tensors"),
        (String::new(), 0, "expected JSON of tensors"),
    ] {
        let fault = Scratch::with(file(&header, &vec![1; data])).open().unwrap_err().to_string();
        assert!(fault.contains(expected), "{header}\n  {fault}\n  {expected}");
    }
    assert!(Scratch::with(file(&two("[2,4]"), &[1; 4])).open().is_ok());
    let notes = file(
        "{\"__metadata__\":{\"format\":\"pt\"},\"e\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[0,0]}}",
        &[],
    );
    assert_eq!(Scratch::with(notes).open().unwrap().names().collect::<Vec<_>>(), ["e"]);
}

#[test]
fn files_that_are_cut_short_or_have_no_end_are_refused_before_anything_is_allocated() {
    let whole = to_safetensors(&["x"], &[tensor(DType::F32, &[2], &[0; 8])]).unwrap();
    for length in 0..whole.len() {
        let fault = Scratch::with(&whole[..length]).open().unwrap_err();
        assert!(matches!(fault, TensorFault::File { .. } | TensorFault::Tensor { .. }), "{length}: {fault}");
    }
    assert!(Scratch::with(&whole).open().is_ok());
    let cut = Scratch::with(&whole[..5]).open().unwrap_err().to_string();
    assert_eq!(cut, "found 5 bytes, expected the length of a header in 8");
    let long = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let long = Scratch::with(long).open().unwrap_err().to_string();
    assert_eq!(long, "found a header of 18446744073709551615 bytes, expected one of at most 2 in a file of 10");
    let folder = TensorFile::open(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap_err();
    assert_eq!(folder.fault.to_string(), "found something else, expected a file");
    let none = TensorFile::open(Path::new("no such file")).unwrap_err().to_string();
    assert!(none.starts_with("no such file: it cannot be read: "), "{none}");
}

#[test]
fn bools_that_are_neither_are_refused() {
    let program = read("x = input b8[2]\noutput(x)");
    let header = "{\"x\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    assert!(Scratch::with(file(header, &[0, 1])).inputs(&program).is_ok());
    let fault = Scratch::with(file(header, &[0, 2])).inputs(&program).unwrap_err();
    assert_eq!(fault, "tensor `x`: found a bool of 2, expected 0 or 1");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn damaged_files_are_refused_or_read(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let values = [tensor(DType::F32, &[2], &[0; 8]), tensor(DType::I64, &[], &[1; 8]), tensor(DType::Bool, &[3], &[1; 3])];
        let mut bytes = to_safetensors(&["x", "y", "z"], &values).unwrap();
        let place = at.index(bytes.len());
        bytes[place] = byte;
        bytes.truncate(bytes.len() - cut.index(bytes.len()) / 8);
        let program = read("x = input f32[2]; y = input i64[]; z = input b8[3]\noutput(x, y, z)");
        if let Ok(file) = Scratch::with(&bytes).open() {
            let _ = file.inputs(&program, Some((GlobalRank(0), 0)));
        }
    }
}
