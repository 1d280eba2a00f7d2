//! The generator of the benches against PyTorch's own printer.

use kit::files;

#[path = "../../benches/synthetic.rs"]
mod generator;

#[test]
fn synthetic_graphs_equal_those_that_pytorch_printed() {
    for collectives in [8, 40, 200] {
        for (pattern, text) in [("fsdp", generator::fsdp(collectives)), ("ddp", generator::ddp(collectives))] {
            let path =
                files::torch_graphs().with_file_name("synthetic").join(format!("{pattern}.K{collectives}.full.txt"));
            let expected = String::from_utf8(files::read(&path)).unwrap();
            assert!(text == expected, "{} differs", path.display());
        }
    }
}
